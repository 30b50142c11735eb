#!/usr/bin/env bash
# GRPO on Geometry3K with a vision-language chat model. Copy this file and change what you need.
#
#   python -m lightrft.tools.prepare_vision hiyouga/geometry3k data/geo3k --split train
#   python -m lightrft.tools.prepare_vision hiyouga/geometry3k data/geo3k --split test
#   PRETRAIN=/path/to/Qwen2.5-VL-3B-Instruct bash examples/geo3k_grpo_vl.sh
#   PRETRAIN=… bash examples/geo3k_grpo_vl.sh --dry_run          # flags at the end are added, or win
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# ---------------------------------------------------------------- 1. Model and data
PRETRAIN="${PRETRAIN:?set PRETRAIN to a vision-language chat model: a folder or a hub name}"
TRAIN_DATA="${TRAIN_DATA:-data/geo3k/train.jsonl}"   # rows of input, images, reference; see docs/vision.md
EVAL_DATA="${EVAL_DATA:-data/geo3k/test.jsonl}"
RUN="${RUN:-runs/geo3k_grpo_vl}"
MAX_PIXELS="${MAX_PIXELS:-401408}"                   # 512 tokens of 28 x 28 pixels; larger images are shrunk

SYSTEM_PROMPT="${SYSTEM_PROMPT:-Reason step by step inside <think> and </think>, then give the final answer in \\boxed{\}.}"

# ---------------------------------------------------------------- 2. Batches
ROLLOUT_BATCH="${ROLLOUT_BATCH:-128}"
SAMPLES="${SAMPLES:-5}"
TRAIN_BATCH="${TRAIN_BATCH:-$((ROLLOUT_BATCH * SAMPLES))}"
MICRO="${MICRO:-4}"                                  # samples per GPU per forward: lower it when memory runs out
MAX_PROMPT="${MAX_PROMPT:-1024}"                     # image tokens count
MAX_NEW="${MAX_NEW:-1024}"

# ---------------------------------------------------------------- 3. Algorithm
LEARNING_RATE="${LEARNING_RATE:-1e-6}"
KL_COEF="${KL_COEF:-0.01}"

# ---------------------------------------------------------------- 4. Engine and launcher
ENGINE="${ENGINE:-vllm}"                             # vllm | sglang | hf
LAUNCH="${LAUNCH:-deepspeed}"                        # deepspeed --num_gpus 4 | torchrun --nproc-per-node 4 | python

# ---------------------------------------------------------------- 5. Go
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"
ARGS=(
    --pretrain "$PRETRAIN"
    --prompt_data "$TRAIN_DATA"
    --eval_data "$EVAL_DATA"
    --apply_chat_template
    --system_prompt "$SYSTEM_PROMPT"
    --max_pixels "$MAX_PIXELS"
    --prompt_max_len "$MAX_PROMPT"
    --generate_max_len "$MAX_NEW"
    --max_len $((MAX_PROMPT + MAX_NEW))

    --reward geo3k

    --rollout_batch_size "$ROLLOUT_BATCH"
    --n_samples_per_prompt "$SAMPLES"
    --train_batch_size "$TRAIN_BATCH"
    --micro_train_batch_size "$MICRO"
    --micro_rollout_batch_size "$((MICRO * 2))"
    --num_episodes 1

    --advantage_estimator group_norm
    --use_kl_loss --kl_estimator k3 --init_kl_coef "$KL_COEF"
    --temperature 1.0 --top_p 1.0
    --actor_learning_rate "$LEARNING_RATE"
    --freeze_prefix                                  # the vision tower stays as it is

    --engine_type "$ENGINE"
    --zero_stage 2
    --gradient_checkpointing

    --eval_before_train --eval_steps 10
    --save_path "$RUN/checkpoints"
    --log_dir "$RUN/logs"
    --use_tensorboard "$RUN/tensorboard"
)
exec $LAUNCH train_vl.py "${ARGS[@]}" "$@"
