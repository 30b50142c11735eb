#!/usr/bin/env bash
# A vision-language run in minutes on two CPU cores: a tiny model that can half count learns to count shapes.
#
#   bash examples/quickstart_vl.sh         # sets up .venv at the first run
#   OUT=/some/folder bash examples/quickstart_vl.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# 1. Environment: everything goes into .venv of this folder.
bash requirements/setup.sh --for vision
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1 DS_ACCELERATOR="${DS_ACCELERATOR:-cpu}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
OUT="${OUT:-runs/quickstart_vl}"
rm -rf "$OUT"
mkdir -p "$OUT"
STARTED=$SECONDS

# 2. Material: a Hugging Face folder with its processor, drawn images, and questions about them as jsonl.
python -m lightrft.tools.make_tiny shapes "$OUT/model"

# 3. Train. One process; two or more: --num_accelerators N (CPU), --num_gpus N (GPU).
ARGS=(
    # Model and data
    --pretrain "$OUT/model"
    --prompt_data "$OUT/train.jsonl"
    --eval_data "$OUT/eval.jsonl"
    --apply_chat_template
    --prompt_max_len 48 --generate_max_len 4 --max_len 52
    # Reward: the number, to the letter
    --reward exact_match
    # Batches: 24 prompts x 8 samples a rollout, one optimizer step on each
    --rollout_batch_size 24 --n_samples_per_prompt 8
    --train_batch_size 192 --micro_train_batch_size 96 --micro_rollout_batch_size 192
    --num_episodes 2
    # Algorithm: GRPO
    --advantage_estimator group_norm
    --init_kl_coef 0
    --temperature 1.0 --top_p 1.0
    --actor_learning_rate 3e-4 --lr_warmup_ratio 0.1 --lr_scheduler cosine
    # Engine and backend
    --engine_type hf --zero_stage 2
    # Evaluation: sampled, then greedy, before and after
    --eval_before_train --eval_temperature 1.0 0.0
    # Output
    --save_path "$OUT/checkpoints" --log_dir "$OUT/logs" --use_tensorboard "$OUT/tensorboard"
)
deepspeed --num_accelerators 1 train_vl.py "${ARGS[@]}"

# 4. Before and after.
python -m lightrft.tools.before_after "$OUT/logs/metrics.jsonl" --name quickstart_vl --seconds $((SECONDS - STARTED))
