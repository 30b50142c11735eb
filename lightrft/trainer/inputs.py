"""What a run reads besides weights: tokenizer, data, rewards, teacher. All of it before a model loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lightrft.algorithms.components import Estimator, PolicyLoss, load_estimator, load_loss
from lightrft.config.plan import Plan
from lightrft.config.resolve import Config
from lightrft.data.processors import TextProcessor
from lightrft.data.prompts import PromptSet, load_prompts
from lightrft.data.rows import LABEL_KEYS, REFERENCE_KEYS, PromptOptions
from lightrft.data.texts import TextOptions, TextSet, load_texts
from lightrft.errors import ConfigError
from lightrft.models.loading import load_model_config, load_tokenizer
from lightrft.models.remote_teacher import RemoteTeacher
from lightrft.models.teacher import check_vocabulary
from lightrft.rewards.build import RewardOptions, build_reward

EVAL_SPLIT = "test"  # of a data set that has several


@dataclass(frozen=True)
class Inputs:
    """Checked, and ready to be used."""

    tokenizer: Any
    prompts: PromptSet
    eval_prompts: PromptSet | None
    texts: TextSet | None  # for PTX
    reward: Any
    estimator: Estimator
    policy_loss: PolicyLoss
    remote_teacher: RemoteTeacher | None
    plan: Plan


def load_inputs(config: Config) -> Inputs:
    """Everything that can be wrong and costs nothing.

    Raises:
        UserError: any of it is missing or unusable, or there are fewer prompts than one step needs.
    """
    load_model_config(config.pretrain, config.trust_remote_code)
    tokenizer = load_tokenizer(config.pretrain, config.trust_remote_code)
    estimator, policy_loss = _components(config)
    processor, options = TextProcessor(tokenizer), _prompt_options(config)
    prompts = load_prompts(config.prompt_data, options, processor)
    eval_prompts = None
    if config.eval_data:
        eval_options = replace(options, data_probs=None, split=EVAL_SPLIT)
        eval_prompts = load_prompts(config.eval_data, eval_options, processor)
    texts = None
    if config.pretrain_data:
        text_options = TextOptions(strict_data=config.strict_data)
        texts = load_texts(config.pretrain_data, tokenizer, config.max_len, text_options)
    reward = build_reward(config.reward, RewardOptions(timeout=config.reward_timeout))
    prompts = _drop_ungradable(prompts, reward, config.strict_data)
    read = {"--prompt_data": prompts, "--eval_data": eval_prompts, "--pretrain_data": texts}
    for name, data in read.items():
        if data is not None and config.world.rank == 0:
            print(f"{name}: {data.report}", flush=True)
    return Inputs(
        tokenizer=tokenizer,
        prompts=prompts,
        eval_prompts=eval_prompts,
        texts=texts,
        reward=reward,
        estimator=estimator,
        policy_loss=policy_loss,
        remote_teacher=_teacher(config, tokenizer) if estimator.needs_teacher else None,
        plan=config.plan(len(prompts)),
    )


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
    load_model_config(config.teacher_pretrain, config.trust_remote_code, flag=flag)
    teacher_tokenizer = load_tokenizer(config.teacher_pretrain, config.trust_remote_code, flag=flag)
    check_vocabulary(tokenizer, teacher_tokenizer, flag)
    return None


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
