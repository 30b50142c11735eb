#!/usr/bin/env bash
# The whole of LightRFT in a few minutes on two CPU cores: a tiny model that can half add learns to add.
#
#   bash examples/quickstart.sh            # sets up .venv at the first run
#   OUT=/some/folder bash examples/quickstart.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# 1. Environment: everything goes into .venv of this folder.
bash requirements/setup.sh --for run
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1 DS_ACCELERATOR="${DS_ACCELERATOR:-cpu}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
OUT="${OUT:-runs/quickstart}"
rm -rf "$OUT"
mkdir -p "$OUT"
STARTED=$SECONDS

# 2. Material: a plain Hugging Face folder, and questions as jsonl like any user's data.
python -m lightrft.tools.make_tiny adder "$OUT/model"

# 3. Train. One process; two or more: --num_accelerators N (CPU), --num_gpus N (GPU).
ARGS=(
    # Model and data
    --pretrain "$OUT/model"
    --prompt_data "$OUT/train.jsonl"
    --eval_data "$OUT/eval.jsonl"
    --apply_chat_template
    --prompt_max_len 16 --generate_max_len 6 --max_len 32
    # Reward: the answer, to the letter
    --reward exact_match
    # Batches: 32 prompts x 8 samples a rollout, two optimizer steps on each
    --rollout_batch_size 32 --n_samples_per_prompt 8
    --train_batch_size 128 --micro_train_batch_size 128 --micro_rollout_batch_size 256
    --num_episodes 2
    # Algorithm: GRPO with a KL term in the loss
    --advantage_estimator group_norm
    --use_kl_loss --kl_estimator k3 --init_kl_coef 0.001
    --clip_range 0.2 --clip_range_higher 0.28
    --temperature 1.0 --top_p 1.0
    --actor_learning_rate 4e-4 --lr_warmup_ratio 0.03
    # Engine and backend
    --engine_type hf --zero_stage 2
    # Evaluation: sampled, then greedy, before and after
    --eval_before_train --eval_temperature 1.0 0.0 --eval_steps 100
    # Output
    --save_path "$OUT/checkpoints" --log_dir "$OUT/logs" --use_tensorboard "$OUT/tensorboard"
)
deepspeed --num_accelerators 1 train.py "${ARGS[@]}"

# 4. Before and after.
python -m lightrft.tools.before_after "$OUT/logs/metrics.jsonl" --name quickstart --seconds $((SECONDS - STARTED))
