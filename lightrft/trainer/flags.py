"""From resolved flags to the options of each part. With `inputs.py` and `build.py`, all that reads flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lightrft.algorithms.losses._common import LossOptions
from lightrft.config.resolve import Config
from lightrft.config.steps import StepPlan
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.models.loading import ModelOptions
from lightrft.rollout.base import EngineOptions, SamplingOptions
from lightrft.trainer.controller import FitOptions
from lightrft.trainer.experience import ExperienceOptions, ShapingOptions
from lightrft.trainer.optimize import OptimizeOptions
from lightrft.trainer.update import BatchOptions, PolicyOptions


def model_options(
    config: Config, path: str, dtype: torch.dtype, flag: str = "--pretrain", trained: bool = True
) -> ModelOptions:
    """How the model at `path` is loaded; only what is trained recomputes activations."""
    return ModelOptions(
        path=path,
        dtype=dtype,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        gradient_checkpointing=config.gradient_checkpointing and trained,
        flag=flag,
        vision=config.modality == "vision",
    )


def optimizer_options(config: Config) -> OptimizerOptions:
    return OptimizerOptions(betas=tuple(config.adam_betas), weight_decay=config.l2, max_norm=config.max_norm)


def optimize_options(config: Config, name: str, steps: StepPlan) -> OptimizeOptions:
    """Learning rate of the policy or the critic; the policy's schedule starts when it is no longer frozen."""
    per_step, total_steps = steps.updates_per_step, steps.total_steps or 0
    frozen = config.freezing_actor_steps if name == "policy" and config.freezing_actor_steps > 0 else 0
    total = max(0, total_steps - frozen) * per_step
    flag = "actor_learning_rate" if name == "policy" else "critic_learning_rate"
    return OptimizeOptions(
        learning_rate=getattr(config, flag),
        warmup_steps=round(config.lr_warmup_ratio * total),
        total_steps=total,
        lr_scheduler=config.lr_scheduler,
        max_skipped_steps=config.max_skipped_steps,
        flag=f"--{flag}",
    )


def experience_options(config: Config) -> ExperienceOptions:
    return ExperienceOptions(
        micro_batch_size=config.micro_rollout_batch_size,
        shaping=shaping_options(config),
        gamma=config.gamma,
        lambd=config.lambd,
        group_std=not config.no_group_std,
        advantages_norm=config.advantages_norm,
        advantage_clip=config.advantage_clip,
        kl_in_reward=not config.use_kl_loss,
        kl_estimator=config.kl_estimator,
        rollout_is=config.rollout_is,
        rollout_is_cap=config.rollout_is_cap,
        high_entropy_token_ratio=config.high_entropy_token_ratio,
        opd_kl_coef=config.opd_kl_coef,
        task_reward=not config.no_task_reward,
    )


def shaping_options(config: Config) -> ShapingOptions:
    return ShapingOptions(
        overlong_buffer_len=config.overlong_buffer_len if config.overlong_buffer else 0,
        overlong_penalty_factor=config.overlong_buffer_penalty_factor,
        max_response_len=config.generate_max_len,
        running_norm=config.reward_running_norm,
        running_norm_minus_mean=config.reward_running_norm_minus_mean,
        reward_clip=config.reward_clip,
    )


def policy_options(config: Config) -> PolicyOptions:
    return PolicyOptions(
        loss=LossOptions(
            clip_low=config.clip_range,
            clip_high=config.clip_range_higher,
            dual_clip=config.dual_clip,
            drift_coef=config.kl_target if config.policy_loss == "cpgd" else 0.0,
        ),
        use_kl_loss=config.use_kl_loss,
        kl_estimator=config.kl_estimator,
        entropy_coef=config.entropy_coef,
    )


def batch_options(config: Config) -> BatchOptions:
    return BatchOptions(
        local_train_batch_size=config.train_batch_size // config.world.size,
        micro_batch_size=config.micro_train_batch_size,
        max_epochs=config.max_epochs,
        loss_agg_mode=config.loss_agg_mode,
        max_response_len=config.generate_max_len,
    )


def sampling_options(config: Config) -> SamplingOptions:
    return SamplingOptions(
        n=config.n_samples_per_prompt,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        first_token_temperature=config.first_token_temperature,
        max_new_tokens=config.generate_max_len,
        max_len=config.max_len,
        seed=config.seed,
        logprobs=config.rollout_logprobs,
    )


def engine_options(
    config: Config,
    trained: torch.dtype,
    media: Mapping[str, int] | None = None,
    banned: Sequence[int] = (),
) -> EngineOptions:
    """The engine beside the trainer; `--engine_dtype auto` follows `trained`, the trainer's dtype.

    `media` are the most images and videos of a prompt, `banned` the token ids that are never sampled.
    """
    return EngineOptions(
        model=config.pretrain,
        dtype=trained if config.engine_dtype == "auto" else getattr(torch, config.engine_dtype),
        max_len=config.max_len,
        tensor_parallel_size=config.engine_tp_size,
        memory_share=config.engine_mem_util,
        max_num_seqs=config.engine_max_num_seqs,
        max_num_batched_tokens=config.engine_max_num_batched_tokens,
        chunked_prefill=config.engine_chunked_prefill,
        sleep=config.enable_engine_sleep,
        seed=config.seed,
        timeout=config.engine_timeout,
        bucket_bytes=config.sync_bucket_mb << 20,
        check_every=config.check_weight_sync,
        trust_remote_code=config.trust_remote_code,
        banned_token_ids=tuple(banned),
        media=media or {},
        kwargs=config.engine_kwargs or {},
    )


def eval_sampling_options(config: Config) -> SamplingOptions:
    """The whole distribution, whatever training samples from; temperatures come from `--eval_temperature`."""
    return SamplingOptions(
        n=config.eval_n_samples,
        max_new_tokens=config.generate_max_len,
        max_len=config.max_len,
        seed=config.seed,
        logprobs="none",
    )


def fit_options(config: Config, steps: StepPlan) -> FitOptions:
    return FitOptions(
        steps_per_episode=steps.steps_per_episode or 0,
        num_episodes=steps.num_episodes,
        rollouts_per_step=steps.rollouts_per_step,
        sampling=sampling_options(config),
        max_gen_batches=config.max_gen_batches if config.dynamic_sampling else 1,
        freezing_actor_steps=config.freezing_actor_steps,
        eval_before_train=config.eval_before_train,
        eval_steps=config.eval_steps,
        save_steps=config.save_steps,
        save_interval=config.save_interval,
        save_hf_ckpt=config.save_hf_ckpt,
        debug=config.debug,
    )
