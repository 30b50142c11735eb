"""The rows that a run reads and the reward that judges them. Training and the tools beside it share this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightrft.config.resolve import Config
from lightrft.config.reward_spec import RewardModelSpec
from lightrft.data.media import Limits
from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.processors import ModelProcessor, Processor, TextProcessor
from lightrft.data.prompts import PromptSet, load_prompts
from lightrft.data.rows import LABEL_KEYS, REFERENCE_KEYS, PromptOptions
from lightrft.models.loading import load_processor, load_tokenizer
from lightrft.models.reward_model import read_reward_config
from lightrft.rewards.base import Reward
from lightrft.rewards.build import RewardOptions, build_reward
from lightrft.rewards.model import ModelReward, ReadLimits
from lightrft.rewards.reading import Reader

EVAL_SPLIT = "test"  # of a data set that has several


@dataclass(frozen=True)
class RunData:
    """What `--prompt_data` and `--eval_data` hold that can be used."""

    prompts: PromptSet
    eval_prompts: PromptSet | None


def prompt_options(config: Config) -> PromptOptions:
    """What the data flags say."""
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


def media_options(config: Config, unit: int) -> MediaOptions:
    """What the multimodal flags say; `unit` is that of the processor."""
    return MediaOptions(
        images_key=config.images_key,
        videos_key=config.videos_key,
        max_images=config.limit_mm_image_per_prompt,
        mixed=config.mixed_mm_data,
        limits=Limits(config.min_pixels, config.max_pixels, unit),
    )


def load_text_or_vision_processor(config: Config) -> ModelProcessor:
    """The processor of `--pretrain`, or the one that `--processor` names.

    Raises:
        ModelError: there is none.
    """
    if config.modality == "text":
        return TextProcessor(load_tokenizer(config.pretrain, config.trust_remote_code))
    given = config.processor or ""
    elsewhere = bool(given) and (Path(given).is_dir() or "/" in given)
    found = load_processor(
        given if elsewhere else config.pretrain,
        config.trust_remote_code,
        "--processor" if elsewhere else "--pretrain",
        "" if elsewhere else given,
    )
    return VisionProcessor(found)


def run_reward(config: Config, models: Sequence[ModelReward] = ()) -> Reward:
    """The reward of `--reward`. Its processes start with the first sample; close it when all is done."""
    return build_reward(config.reward, RewardOptions(timeout=config.reward_timeout), models)


def reward_models(config: Config, tokenizer: Any) -> list[ModelReward]:
    """The reward models that `--reward` names, without their weights. `tokenizer` is the policy's.

    Raises:
        ModelError: one is missing, has no tokenizer, or is no reward model.
    """
    return [_reward_model(config, spec, tokenizer) for spec in config.reward_models]


def _reward_model(config: Config, spec: RewardModelSpec, tokenizer: Any) -> ModelReward:
    flag, trusted = "--reward_pretrain", config.trust_remote_code
    found = read_reward_config(spec.path, trusted, flag)
    reader = Reader(tokenizer, load_tokenizer(spec.path, trusted, flag))
    limits = ReadLimits(found.get_text_config().vocab_size, getattr(found, "max_position_embeddings", None))
    return ModelReward(spec.reward, spec.path, reader, limits)


def load_run_data(config: Config, processor: Processor, reward: Reward | None) -> RunData:
    """Both prompt sets; see `load_prompt_set`."""
    prompts = load_prompt_set(config, "prompt_data", processor, reward)
    return RunData(
        prompts, load_prompt_set(config, "eval_data", processor, reward) if config.eval_data else None
    )


def load_prompt_set(config: Config, flag: str, processor: Processor, reward: Reward | None) -> PromptSet:
    """The rows of `--prompt_data` or `--eval_data` that `reward` can grade (None: nothing is graded).

    Raises:
        DataError: a source cannot be read, nothing of it is left, or `--strict_data` finds a bad row.
        RewardError: the reward's graders do not start, or its server cannot be asked.
    """
    options = prompt_options(config)
    if isinstance(processor, VisionProcessor):
        options = replace(options, media=media_options(config, processor.unit))
    if flag == "eval_data":
        options = replace(options, data_probs=None, split=EVAL_SPLIT)
    return gradable(load_prompts(config.values[flag], options, processor), reward, config.strict_data)


def gradable(prompts: PromptSet, reward: Reward | None, strict: bool) -> PromptSet:
    """Without the rows that no response could be graded against; each is reported as a bad row."""
    problems = {} if reward is None else {p.index: p.reason for p in reward.check_references(prompts)}
    return prompts.drop(problems, strict=strict) if problems else prompts


def grader_of(name: str, config: Config) -> Reward:
    """One of the rewards that a run sums, alone and unweighted."""
    return build_reward([name], RewardOptions(timeout=config.reward_timeout))
