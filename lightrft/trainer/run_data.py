"""The rows that a run reads and the reward that judges them. Training and the tools beside it share this."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lightrft.config.resolve import Config
from lightrft.data.processors import Processor
from lightrft.data.prompts import PromptSet, load_prompts
from lightrft.data.rows import LABEL_KEYS, REFERENCE_KEYS, PromptOptions
from lightrft.rewards.base import Reward
from lightrft.rewards.build import RewardOptions, build_reward

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


def run_reward(config: Config) -> Reward:
    """The reward of `--reward`. Its processes start with the first sample; close it when all is done."""
    return build_reward(config.reward, RewardOptions(timeout=config.reward_timeout))


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
