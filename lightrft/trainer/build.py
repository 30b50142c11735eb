"""From resolved flags to a running loop: the only reader of flags below the front end.

Order: data and rewards first, since they can be wrong and cost nothing; then the process group; then models.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lightrft import registry
from lightrft.algorithms.kl import FixedKLController
from lightrft.algorithms.losses._common import LossOptions
from lightrft.config.plan import Plan
from lightrft.config.resolve import Config
from lightrft.config.steps import StepPlan
from lightrft.data.processors import TextProcessor
from lightrft.data.prompts import PromptSet, load_prompts
from lightrft.data.rows import LABEL_KEYS, REFERENCE_KEYS, PromptOptions
from lightrft.data.sampler import PromptSampler
from lightrft.distributed import collectives
from lightrft.distributed.strategy import OptimizerOptions, Strategy, TrainableModel
from lightrft.models.loading import ModelOptions, load_causal_lm, load_model_config, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.observability.console import Console
from lightrft.observability.logger import RunLogger, WandbOptions
from lightrft.observability.sentinels import SentinelBoard
from lightrft.observability.timers import Timers
from lightrft.observability.trajectories import TrajectoryWriter
from lightrft.rewards.build import RewardOptions, build_reward
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.hf import HFEngine
from lightrft.trainer.checkpoint import CheckpointOptions, CheckpointStore
from lightrft.trainer.controller import Controller, FitOptions, Observers, Parts
from lightrft.trainer.evaluate import Evaluator
from lightrft.trainer.experience import ExperienceMaker, ExperienceOptions
from lightrft.trainer.export import Exporter
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.resume import find_resumable
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater

EVAL_SPLIT = "test"  # of a data set that has several
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Inputs:
    """What a run reads besides the model: all of it is checked before a model loads."""

    tokenizer: Any
    prompts: PromptSet
    eval_prompts: PromptSet | None
    reward: Any
    plan: Plan


def load_inputs(config: Config) -> Inputs:
    """Tokenizer, data and rewards.

    Raises:
        UserError: any of them is missing or unusable, or there are fewer prompts than one step needs.
    """
    load_model_config(config.pretrain, config.trust_remote_code)
    tokenizer = load_tokenizer(config.pretrain, config.trust_remote_code)
    processor = TextProcessor(tokenizer)
    options = _prompt_options(config)
    prompts = load_prompts(config.prompt_data, options, processor)
    eval_prompts = None
    if config.eval_data:
        eval_options = replace(options, data_probs=None, split=EVAL_SPLIT)
        eval_prompts = load_prompts(config.eval_data, eval_options, processor)
    reward = build_reward(config.reward, RewardOptions(timeout=config.reward_timeout))
    prompts = _drop_ungradable(prompts, reward, config.strict_data)
    for name, data in (("--prompt_data", prompts), ("--eval_data", eval_prompts)):
        if data is not None and config.world.rank == 0:
            print(f"{name}: {data.report}", flush=True)
    return Inputs(tokenizer, prompts, eval_prompts, reward, config.plan(len(prompts)))


def _drop_ungradable(prompts: PromptSet, reward: Any, strict: bool) -> PromptSet:
    """Without the rows that no response could be graded against."""
    problems = {p.index: p.reason for p in reward.check_references(prompts)}
    return prompts.drop(problems, strict=strict) if problems else prompts


def _prompt_options(config: Config) -> PromptOptions:
    return PromptOptions(
        input_key=config.input_key,
        label_key=config.label_key or LABEL_KEYS[0],
        reference_key=config.reference_key or REFERENCE_KEYS[0],
        apply_chat_template=config.apply_chat_template,
        system_prompt=config.system_prompt,
        input_template=config.input_template,
        prompt_max_len=config.prompt_max_len,
        strict_data=config.strict_data,
        data_probs=tuple(config.prompt_data_probs) if config.prompt_data_probs else None,
        seed=config.seed,
        truncate_prompts=config.truncate_prompts,
    )


def build_strategy(config: Config) -> tuple[torch.device, Strategy]:
    """Join the process group and choose how models are placed."""
    from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed

    device = init_distributed(COLLECTIVE_TIMEOUT)
    options = DeepSpeedOptions(
        zero_stage=config.zero_stage,
        bf16=config.bf16,
        adam_offload=config.adam_offload,
        micro_batch_size=config.micro_train_batch_size,
    )
    return device, DeepSpeedStrategy(device, options)


def build_controller(config: Config, inputs: Inputs, strategy: Strategy, device: torch.device) -> Controller:
    """Load the models and put the loop together; restores a checkpoint where one is asked for."""
    found = None
    if config.load_checkpoint:
        path = Path(config.ckpt_path or config.save_path)
        found = find_resumable(path, config.to_dict(), inputs.prompts.fingerprint())
    run_id = found.meta["run_id"] if found else collectives.gather_objects(_new_run_id())[0]
    policy, model = build_policy(config, strategy)
    reference = build_reference(config, strategy)
    kl_controller = FixedKLController(config.init_kl_coef)
    engine = HFEngine(model, inputs.tokenizer, config.micro_rollout_batch_size)
    steps = inputs.plan.steps
    prompts_per_step = config.rollout_batch_size * steps.rollouts_per_step
    evaluator = _evaluator(config, inputs, engine)
    parts = Parts(
        prompts=inputs.prompts,
        sampler=PromptSampler(len(inputs.prompts), prompts_per_step, config.seed),
        policy=policy,
        engine=engine,
        reward=inputs.reward,
        experience_maker=_experience_maker(config, inputs, policy, reference, kl_controller, device),
        updater=_updater(config, policy, kl_controller, steps, device),
        evaluator=evaluator,
        checkpoints=CheckpointStore(
            CheckpointOptions(Path(config.save_path), run_id, config.max_ckpt_num, config.max_ckpt_mem)
        ),
        exporter=Exporter(policy, model, inputs.tokenizer, Path(config.save_path), run_id),
    )
    controller = Controller(
        parts,
        build_observers(config, found.meta["step"] if found else 0),
        _fit_options(config, steps),
        _run_record(config, inputs),
        device,
    )
    if found:
        controller.restore(found.shared, found.local)
        controller.last_checkpoint = found.folder
    return controller


def build_policy(config: Config, strategy: Strategy) -> tuple[TrainableModel, PreTrainedModel]:
    """The trained model under its strategy, and the Hugging Face model inside."""
    model = load_causal_lm(_model_options(config, strategy.dtype))
    policy = Policy(model, config.temperature, strategy.device)
    if policy.whole_forward and collectives.rank() == 0:
        print(
            f"{type(model).__name__} changes logits after its head: log-probs take its whole forward, "
            "with logits for prompt tokens too",
            flush=True,
        )
    return strategy.prepare_trainable(policy, _optimizer_options(config)), model


def build_reference(config: Config, strategy: Strategy) -> Policy | None:
    """A frozen copy of the starting policy; none where the KL coefficient is 0."""
    if config.init_kl_coef == 0:
        return None
    options = _model_options(config, strategy.dtype)
    model = load_causal_lm(
        ModelOptions(options.path, options.dtype, options.attn_implementation, options.trust_remote_code)
    )
    frozen = strategy.prepare_frozen(Policy(model, config.temperature, strategy.device))
    assert isinstance(frozen, Policy)
    return frozen


def _model_options(config: Config, dtype: torch.dtype) -> ModelOptions:
    return ModelOptions(
        path=config.pretrain,
        dtype=dtype,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def _optimizer_options(config: Config) -> OptimizerOptions:
    return OptimizerOptions(betas=tuple(config.adam_betas), weight_decay=config.l2, max_norm=config.max_norm)


def _experience_maker(
    config: Config,
    inputs: Inputs,
    policy: TrainableModel,
    reference: Policy | None,
    kl_controller: FixedKLController,
    device: torch.device,
) -> ExperienceMaker:
    estimator = registry.load("algorithms/advantages", config.advantage_estimator, "--advantage_estimator")
    options = ExperienceOptions(
        micro_batch_size=config.micro_rollout_batch_size,
        gamma=config.gamma,
        group_std=not config.no_group_std,
        reward_clip=config.reward_clip,
        advantages_norm=config.advantages_norm,
        advantage_clip=config.advantage_clip,
        kl_in_reward=config.init_kl_coef != 0 and not config.use_kl_loss,
        kl_estimator=config.kl_estimator,
    )
    return ExperienceMaker(
        policy, reference, estimator.compute, kl_controller, options, inputs.tokenizer, device
    )


def _updater(
    config: Config,
    policy: TrainableModel,
    kl_controller: FixedKLController,
    steps: StepPlan,
    device: torch.device,
) -> PolicyUpdater:
    loss = registry.load("algorithms/losses", config.policy_loss, "--policy_loss")
    options = PolicyOptions(
        loss=LossOptions(config.clip_range, config.clip_range_higher, config.dual_clip),
        use_kl_loss=config.use_kl_loss,
        kl_estimator=config.kl_estimator,
        entropy_coef=config.entropy_coef,
    )
    optimizer = _optimizer(config, "policy", policy, steps, device)
    return PolicyUpdater(optimizer, loss.compute, kl_controller, _batch_options(config), options)


def _optimizer(
    config: Config, name: str, model: TrainableModel, steps: StepPlan, device: torch.device
) -> Optimizer:
    total = (steps.optimizer_steps_per_episode or 0) * steps.num_episodes
    flag = "actor_learning_rate" if name == "policy" else "critic_learning_rate"
    options = OptimizeOptions(
        learning_rate=getattr(config, flag),
        warmup_steps=round(config.lr_warmup_ratio * total),
        total_steps=total,
        lr_scheduler=config.lr_scheduler,
        max_skipped_steps=config.max_skipped_steps,
        flag=f"--{flag}",
    )
    return Optimizer(name, model, options, device)


def _batch_options(config: Config) -> BatchOptions:
    return BatchOptions(
        local_train_batch_size=config.train_batch_size // config.world.size,
        micro_batch_size=config.micro_train_batch_size,
        max_epochs=config.max_epochs,
        loss_agg_mode=config.loss_agg_mode,
        max_response_len=config.generate_max_len,
    )


def _sampling(config: Config) -> SamplingOptions:
    return SamplingOptions(
        n=config.n_samples_per_prompt,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.generate_max_len,
        max_len=config.max_len,
        seed=config.seed,
    )


def _evaluator(config: Config, inputs: Inputs, engine: HFEngine) -> Evaluator | None:
    if inputs.eval_prompts is None:
        return None
    sampling = SamplingOptions(
        n=config.eval_n_samples,
        max_new_tokens=config.generate_max_len,
        max_len=config.max_len,
        seed=config.seed,
    )
    return Evaluator(
        inputs.eval_prompts,
        engine,
        inputs.reward,
        sampling,
        config.eval_temperature,
        config.rollout_batch_size,
    )


def _fit_options(config: Config, steps: StepPlan) -> FitOptions:
    return FitOptions(
        steps_per_episode=steps.steps_per_episode or 0,
        num_episodes=steps.num_episodes,
        rollouts_per_step=steps.rollouts_per_step,
        sampling=_sampling(config),
        eval_before_train=config.eval_before_train,
        eval_steps=config.eval_steps,
        save_steps=config.save_steps,
        save_interval=config.save_interval,
        save_hf_ckpt=config.save_hf_ckpt,
    )


def build_observers(config: Config, resumed_step: int) -> Observers:
    """Logger, console, timers, sentinels."""
    rank = config.world.rank
    wandb = (
        WandbOptions(config.use_wandb, config.wandb_org, config.wandb_run_name, config.to_dict())
        if config.use_wandb
        else None
    )
    log_dir = Path(config.log_dir)
    logger = RunLogger(
        log_dir,
        tensorboard_dir=Path(config.use_tensorboard) if config.use_tensorboard else None,
        wandb=wandb,
        rank=rank,
        resumed_step=resumed_step,
    )
    return Observers(
        logger=logger,
        console=Console(rank),
        timers=Timers(synchronize=config.debug),
        sentinels=SentinelBoard("bf16" if config.bf16 else "fp32", resumed=resumed_step > 0),
        trajectories=TrajectoryWriter(log_dir, rank),
    )


def _new_run_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"


def _run_record(config: Config, inputs: Inputs) -> dict[str, Any]:
    """What a checkpoint says of the run that wrote it."""
    return {
        "flags": config.to_dict(),
        "prompts": inputs.prompts.fingerprint(),
        "versions": {name: version(name) for name in ("lightrft", "torch", "transformers", "deepspeed")},
    }
