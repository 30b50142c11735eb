#!/usr/bin/env bash
# GRPO on GSM8K with any chat model. Copy this file and change what you need.
#
#   PRETRAIN=/path/to/Qwen2.5-0.5B-Instruct bash examples/gsm8k_grpo.sh
#   PRETRAIN=… bash examples/gsm8k_grpo.sh --dry_run          # flags at the end are added, or win
#
# On a CPU, a few steps with a small model:
#   PRETRAIN=/path/to/SmolLM2-135M-Instruct TRAIN_DATA=train.jsonl@[0:80] EVAL_DATA=test.jsonl@[0:8] \
#   ROLLOUT_BATCH=8 SAMPLES=4 MICRO=4 MAX_NEW=96 ENGINE=hf LAUNCH="deepspeed --num_accelerators 1" \
#   bash examples/gsm8k_grpo.sh --eval_steps 0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# ---------------------------------------------------------------- 1. Model and data
PRETRAIN="${PRETRAIN:?set PRETRAIN to a chat model: a folder or a hub name}"
TRAIN_DATA="${TRAIN_DATA:-openai/gsm8k:main}"   # hub name, or a jsonl/parquet with question and answer
EVAL_DATA="${EVAL_DATA:-openai/gsm8k:main}"
RUN="${RUN:-runs/gsm8k_grpo}"

SYSTEM_PROMPT="${SYSTEM_PROMPT:-Reason step by step inside <think> and </think>, then give the final answer in \\boxed{\}.}"

# ---------------------------------------------------------------- 2. Batches
# A rollout is ROLLOUT_BATCH prompts x SAMPLES responses; one optimizer step takes all of them (on-policy).
ROLLOUT_BATCH="${ROLLOUT_BATCH:-128}"
SAMPLES="${SAMPLES:-8}"
TRAIN_BATCH="${TRAIN_BATCH:-$((ROLLOUT_BATCH * SAMPLES))}"
MICRO="${MICRO:-8}"                              # samples per GPU per forward: lower it when memory runs out
MAX_PROMPT="${MAX_PROMPT:-512}"
MAX_NEW="${MAX_NEW:-512}"

# ---------------------------------------------------------------- 3. Algorithm
LEARNING_RATE="${LEARNING_RATE:-1e-6}"
KL_COEF="${KL_COEF:-0.001}"

# ---------------------------------------------------------------- 4. Engine and launcher
ENGINE="${ENGINE:-vllm}"                         # vllm | sglang | hf (no package needed; slow on a GPU)
LAUNCH="${LAUNCH:-deepspeed}"                    # deepspeed --num_gpus 4 | torchrun --nproc-per-node 4 | python

# ---------------------------------------------------------------- 5. Go
[ -d .venv ] && export PATH="$PWD/.venv/bin:$PATH"
ARGS=(
    --pretrain "$PRETRAIN"
    --prompt_data "$TRAIN_DATA"
    --eval_data "$EVAL_DATA"
    --apply_chat_template
    --system_prompt "$SYSTEM_PROMPT"
    --prompt_max_len "$MAX_PROMPT"
    --generate_max_len "$MAX_NEW"
    --max_len $((MAX_PROMPT + MAX_NEW))

    --reward gsm8k

    --rollout_batch_size "$ROLLOUT_BATCH"
    --n_samples_per_prompt "$SAMPLES"
    --train_batch_size "$TRAIN_BATCH"
    --micro_train_batch_size "$MICRO"
    --micro_rollout_batch_size "$((MICRO * 4))"
    --num_episodes 1

    --advantage_estimator group_norm
    --use_kl_loss --kl_estimator k3 --init_kl_coef "$KL_COEF"
    --clip_range 0.2 --clip_range_higher 0.28
    --temperature 1.0 --top_p 1.0
    --actor_learning_rate "$LEARNING_RATE"

    --engine_type "$ENGINE"
    --zero_stage 2
    --gradient_checkpointing

    --eval_before_train --eval_steps 10
    --save_path "$RUN/checkpoints"
    --log_dir "$RUN/logs"
    --use_tensorboard "$RUN/tensorboard"
)
exec $LAUNCH train.py "${ARGS[@]}" "$@"
