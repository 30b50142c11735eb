"""From flags and inputs to a loop that is ready to run."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lightrft.algorithms.kl import AdaptiveKLController, FixedKLController, KLController
from lightrft.config.resolve import Config
from lightrft.data.sampler import PromptSampler
from lightrft.data.texts import TextSampler
from lightrft.distributed import collectives
from lightrft.distributed.strategy import Strategy, TrainableModel
from lightrft.models.critic import Critic, load_critic
from lightrft.models.loading import load_causal_lm
from lightrft.models.multimodal import freeze_tower
from lightrft.models.policy import Policy
from lightrft.models.reward_model import ModuleScorer, load_reward_model
from lightrft.models.teacher import LocalTeacher, Teacher
from lightrft.observability.console import Console
from lightrft.observability.logger import RunLogger, WandbOptions
from lightrft.observability.sentinels import SentinelBoard
from lightrft.observability.timers import Timers
from lightrft.observability.trajectories import TrajectoryWriter
from lightrft.rollout.base import RolloutEngine
from lightrft.trainer import flags
from lightrft.trainer.checkpoint import CheckpointOptions, CheckpointStore
from lightrft.trainer.controller import Controller, Observers, Parts
from lightrft.trainer.critic import CriticUpdater
from lightrft.trainer.ema import EMA
from lightrft.trainer.engine import banned_ids, build_engine, start_engine
from lightrft.trainer.evaluate import Evaluator
from lightrft.trainer.experience import ExperienceMaker, Models
from lightrft.trainer.export import Exporter
from lightrft.trainer.inputs import Inputs
from lightrft.trainer.optimize import Optimizer
from lightrft.trainer.ptx import PTXLoss
from lightrft.trainer.resume import find_resumable
from lightrft.trainer.state import restore
from lightrft.trainer.update import PolicyUpdater

COLLECTIVE_TIMEOUT = timedelta(minutes=30)


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
    controller = Controller(
        build_parts(config, inputs, strategy, device, run_id),
        build_observers(config, found.meta["step"] if found else 0),
        flags.fit_options(config, inputs.plan.steps),
        _run_record(config, inputs),
        device,
    )
    if found:
        controller.step = restore(controller.parts, found.shared, found.local)
        controller.last_checkpoint = found.folder
    start_engine(
        config, controller.parts.engine, controller.parts.policy, int(inputs.tokenizer.pad_token_id), device
    )
    return controller


def build_parts(
    config: Config, inputs: Inputs, strategy: Strategy, device: torch.device, run_id: str
) -> Parts:
    """Everything that the loop turns."""
    policy, model = build_policy(config, inputs, strategy)
    models = build_models(config, inputs, strategy, policy)
    for reward in inputs.reward_models:
        reward.start(build_scorer(config, reward.path, strategy))
    engine = build_engine(config, inputs, model, strategy.dtype, device)
    kl_controller = build_kl_controller(config)
    ema = EMA(config.ema_beta) if config.enable_ema else None
    if ema is not None:
        ema.start(policy)
    save_path, steps = Path(config.save_path), inputs.plan.steps
    maker = ExperienceMaker(
        models,
        inputs.estimator,
        kl_controller,
        flags.experience_options(config),
        int(inputs.tokenizer.pad_token_id),
        device,
        inputs.processor.features,
    )
    return Parts(
        prompts=inputs.prompts,
        sampler=PromptSampler(
            len(inputs.prompts), config.rollout_batch_size * steps.rollouts_per_step, config.seed
        ),
        policy=policy,
        engine=engine,
        reward=inputs.reward,
        experience_maker=maker,
        updater=build_updater(config, inputs, policy, kl_controller, ema, device),
        critic_updater=build_critic_updater(config, inputs, models.critic, device),
        ema=ema,
        evaluator=build_evaluator(config, inputs, engine),
        checkpoints=CheckpointStore(
            CheckpointOptions(save_path, run_id, config.max_ckpt_num, config.max_ckpt_mem)
        ),
        exporter=Exporter(policy, model, inputs.processor, save_path, run_id),
    )


def build_policy(
    config: Config, inputs: Inputs, strategy: Strategy
) -> tuple[TrainableModel, PreTrainedModel]:
    """The trained model under its strategy, and the Hugging Face model inside."""
    with strategy.loading():
        model = load_causal_lm(flags.model_options(config, config.pretrain, strategy.dtype))
    if config.freeze_prefix and config.modality == "vision":
        count = freeze_tower(model)
        if collectives.rank() == 0:
            print(f"--freeze_prefix: {count:,} weights of the vision tower stay as they are", flush=True)
    policy = _policy(config, inputs, model, strategy)
    return strategy.prepare_trainable(policy, flags.optimizer_options(config)), model


def build_models(config: Config, inputs: Inputs, strategy: Strategy, policy: TrainableModel) -> Models:
    """Reference (none with a KL coefficient of 0), critic and teacher, as far as the run asks for them."""
    reference = None
    if config.init_kl_coef != 0:
        reference = _frozen_policy(config, inputs, strategy, config.pretrain, "--pretrain")
    critic = None
    if inputs.estimator.needs_critic:
        path = config.critic_pretrain or config.pretrain
        options = flags.model_options(config, path, strategy.dtype, "--critic_pretrain")
        with strategy.loading():
            module = load_critic(options, strategy.device, inputs.fillers)
        critic = strategy.prepare_trainable(module, flags.optimizer_options(config))
    teacher: Teacher | None = inputs.remote_teacher
    if inputs.estimator.needs_teacher and teacher is None:
        frozen = _frozen_policy(config, inputs, strategy, config.teacher_pretrain, "--teacher_pretrain")
        teacher = LocalTeacher(frozen, config.micro_rollout_batch_size, strategy.device)
    return Models(policy, reference, critic, teacher)


def build_scorer(config: Config, path: str, strategy: Strategy) -> ModuleScorer:
    """The reward model at `path`: sharded where the policy is, else in the host's memory between uses."""
    options = flags.model_options(config, path, strategy.dtype, "--reward_pretrain", trained=False)
    with strategy.loading():
        module = load_reward_model(options)
    parked = strategy.prepare_parked(module)
    return ModuleScorer(parked, config.micro_rollout_batch_size, strategy.device)


def _policy(config: Config, inputs: Inputs, model: PreTrainedModel, strategy: Strategy) -> Policy:
    banned = banned_ids(config, model)
    return Policy(model, config.temperature, strategy.device, banned, inputs.fillers)


def _frozen_policy(config: Config, inputs: Inputs, strategy: Strategy, path: str, flag: str) -> Policy:
    with strategy.loading():
        model = load_causal_lm(flags.model_options(config, path, strategy.dtype, flag, trained=False))
    frozen = strategy.prepare_frozen(_policy(config, inputs, model, strategy))
    assert isinstance(frozen, Policy)
    return frozen


def build_kl_controller(config: Config) -> KLController:
    if config.kl_controller == "adaptive":
        return AdaptiveKLController(config.init_kl_coef, config.kl_target, config.kl_horizon)
    return FixedKLController(config.init_kl_coef)


def build_updater(
    config: Config,
    inputs: Inputs,
    policy: TrainableModel,
    kl_controller: KLController,
    ema: EMA | None,
    device: torch.device,
) -> PolicyUpdater:
    """The policy's update, with PTX beside it and EMA behind it where asked for."""
    options = flags.optimize_options(config, "policy", inputs.plan.steps)
    auxiliary = None
    if inputs.texts is not None:
        auxiliary = PTXLoss(
            inputs.texts,
            TextSampler(len(inputs.texts), config.seed),
            config.ptx_coef,
            config.train_batch_size,
            config.micro_train_batch_size,
            int(inputs.tokenizer.pad_token_id),
        )
    return PolicyUpdater(
        Optimizer("policy", policy, options, device),
        inputs.policy_loss,
        kl_controller,
        flags.batch_options(config),
        flags.policy_options(config),
        auxiliary,
        None if ema is None else lambda: ema.update(policy),
    )


def build_critic_updater(
    config: Config, inputs: Inputs, critic: TrainableModel | None, device: torch.device
) -> CriticUpdater | None:
    if critic is None:
        return None
    assert isinstance(critic.module, Critic)
    options = flags.optimize_options(config, "critic", inputs.plan.steps)
    optimizer = Optimizer("critic", critic, options, device)
    saved = inputs.processor if config.save_value_network else None
    return CriticUpdater(optimizer, flags.batch_options(config), config.value_clip, saved)


def build_evaluator(config: Config, inputs: Inputs, engine: RolloutEngine) -> Evaluator | None:
    if inputs.eval_prompts is None:
        return None
    return Evaluator(
        inputs.eval_prompts,
        engine,
        inputs.reward,
        flags.eval_sampling_options(config),
        config.eval_temperature,
        config.rollout_batch_size,
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
