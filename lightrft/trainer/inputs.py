"""What a run reads besides weights: tokenizer, data, rewards, teacher. All of it before a model loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightrft.algorithms.components import Estimator, PolicyLoss, load_estimator, load_loss
from lightrft.config.plan import Plan
from lightrft.config.resolve import Config
from lightrft.data.multimodal import VisionProcessor
from lightrft.data.processors import ModelProcessor
from lightrft.data.prompts import PromptSet
from lightrft.data.texts import TextOptions, TextSet, load_texts
from lightrft.errors import ConfigError
from lightrft.models.loading import load_model_config, load_tokenizer
from lightrft.models.multimodal import Filler
from lightrft.models.remote_teacher import RemoteTeacher
from lightrft.models.teacher import check_vocabulary
from lightrft.rewards.base import Reward
from lightrft.rewards.model import ModelReward
from lightrft.trainer.run_data import (
    load_run_data,
    load_text_or_vision_processor,
    reward_models,
    run_reward,
)
from lightrft.types import Prompt


@dataclass(frozen=True)
class Inputs:
    """Checked, and ready to be used."""

    tokenizer: Any
    processor: ModelProcessor
    fillers: tuple[Filler, ...]  # for batches without pictures; () for text
    media: dict[str, int]  # most images and videos of a prompt; {} for text
    prompts: PromptSet
    eval_prompts: PromptSet | None
    texts: TextSet | None  # for PTX
    reward: Reward
    reward_models: list[ModelReward]  # those in `reward`, which are still to be given their models
    estimator: Estimator
    policy_loss: PolicyLoss
    remote_teacher: RemoteTeacher | None
    plan: Plan


def load_inputs(config: Config) -> Inputs:
    """Everything that can be wrong and costs nothing.

    Raises:
        UserError: any of it is missing or unusable, or there are fewer prompts than one step needs.
    """
    load_model_config(config.pretrain, config.trust_remote_code, vision=config.modality == "vision")
    processor = load_text_or_vision_processor(config)
    tokenizer = processor.tokenizer
    estimator, policy_loss = _components(config)
    models = reward_models(config, tokenizer)
    reward = run_reward(config, models)
    data = load_run_data(config, processor, reward)
    media = {} if config.modality == "text" else _most_media([*data.prompts, *(data.eval_prompts or [])])
    if media.get("video") and config.engine_type == "sglang":
        raise ConfigError("--engine_type sglang takes no videos here: use --engine_type vllm or hf")
    texts = None
    if config.pretrain_data:
        text_options = TextOptions(strict_data=config.strict_data)
        texts = load_texts(config.pretrain_data, tokenizer, config.max_len, text_options)
    read = {"--prompt_data": data.prompts, "--eval_data": data.eval_prompts, "--pretrain_data": texts}
    for name, rows in read.items():
        if rows is not None and config.world.rank == 0:
            print(f"{name}: {rows.report}", flush=True)
    return Inputs(
        tokenizer=tokenizer,
        processor=processor,
        fillers=_fillers(processor, media),
        media=media,
        prompts=data.prompts,
        eval_prompts=data.eval_prompts,
        texts=texts,
        reward=reward,
        reward_models=models,
        estimator=estimator,
        policy_loss=policy_loss,
        remote_teacher=_teacher(config, tokenizer) if estimator.needs_teacher else None,
        plan=config.plan(len(data.prompts)),
    )


def _most_media(prompts: Sequence[Prompt]) -> dict[str, int]:
    """The most images and videos that a prompt has; room for an image even where none has any."""
    counts = {k: max((len(p.multimodal.get(k, ())) for p in prompts), default=0) for k in ("image", "video")}
    return counts | {"image": max(1, counts["image"])}


def _fillers(processor: ModelProcessor, media: Mapping[str, int]) -> tuple[Filler, ...]:
    """One for each kind of picture that the data has: the same on all ranks, as all read the same data."""
    if not isinstance(processor, VisionProcessor):
        return ()
    return tuple(Filler(*processor.filler(kind)) for kind, most in media.items() if most)


def _components(config: Config) -> tuple[Estimator, PolicyLoss]:
    """Estimator and loss; what a user's own estimator asks for is checked like what a built-in one does."""
    estimator = load_estimator(config.advantage_estimator)
    name, n = config.advantage_estimator, config.n_samples_per_prompt
    if estimator.needs_groups and n < 2:
        raise ConfigError(
            f"--advantage_estimator {name} compares the samples of a prompt: --n_samples_per_prompt {n} must "
            "be at least 2"
        )
    return estimator, load_loss(config.policy_loss)


def _teacher(config: Config, tokenizer: Any) -> RemoteTeacher | None:
    """The remote teacher, asked for its vocabulary; None where the teacher is a folder, which is compared."""
    if config.teacher_model_url:
        remote = RemoteTeacher(config.teacher_model_url, config.temperature, tokenizer)
        remote.check_vocabulary()
        return remote
    if not config.teacher_pretrain:
        raise ConfigError(
            f"--advantage_estimator {config.advantage_estimator} needs a teacher: give --teacher_pretrain or "
            "--teacher_model_url"
        )
    flag = "--teacher_pretrain"
    vision = config.modality == "vision"
    load_model_config(config.teacher_pretrain, config.trust_remote_code, flag, vision)
    teacher_tokenizer = load_tokenizer(config.teacher_pretrain, config.trust_remote_code, flag=flag)
    check_vocabulary(tokenizer, teacher_tokenizer, flag)
    return None
