"""Rules of the algorithm: groups, KL, clipping, sampling."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning
from lightrft.registry import PACKAGE_ROOT, is_user_path, module_name

# What estimators need whose files do not exist yet; a file's own literals come before these.
_NEEDS_GROUPS = ("group_norm", "rloo", "reinforce_baseline", "cpgd")
_NEEDS_CRITIC = ("gae",)
_LOW_KL, _HIGH_KL = 0.001, 0.01
_WIDE_FOR_GSPO = 0.05
_CONSTANT = ("cpgd", "on_policy_distillation")  # take neither token rewards nor a discount


def _literal(package: str, value: str, name: str, default: Any) -> Any:
    """The constant `name` of a component's file, read without importing it (it may import torch)."""
    if is_user_path(value):
        path = Path(value.rpartition(":")[0])
    else:
        path = PACKAGE_ROOT / package / f"{module_name(value)}.py"
    if not path.is_file():
        return default
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return ast.literal_eval(node.value)
    return default


def _needs_groups(config: Config) -> bool:
    estimator = config.advantage_estimator
    return bool(_literal("algorithms/advantages", estimator, "NEEDS_GROUPS", estimator in _NEEDS_GROUPS))


def _needs_critic(config: Config) -> bool:
    estimator = config.advantage_estimator
    return bool(_literal("algorithms/advantages", estimator, "NEEDS_CRITIC", estimator in _NEEDS_CRITIC))


@error
def groups_need_samples(config: Config) -> Iterator[str]:
    n = config.n_samples_per_prompt
    if n >= 2:
        return
    if _needs_groups(config):
        yield (
            f"n_samples_per_prompt ({n}): advantage_estimator {config.advantage_estimator} compares the "
            "samples of a prompt with each other: use 2 or more (4 to 16 are common)"
        )
    if config.dynamic_sampling:
        yield (
            f"n_samples_per_prompt ({n}): dynamic_sampling keeps the prompts whose samples differ in reward: "
            "use 2 or more"
        )


@error
def distillation_has_a_teacher(config: Config) -> Iterator[str]:
    if not _literal("algorithms/advantages", config.advantage_estimator, "NEEDS_TEACHER", False):
        return
    name, sources = config.advantage_estimator, (config.teacher_pretrain, config.teacher_model_url)
    if not any(sources):
        yield f"advantage_estimator {name} needs a teacher: give --teacher_pretrain or --teacher_model_url"
    if all(sources):
        yield f"teacher_pretrain and teacher_model_url both name a teacher for {name}: give one of them"
    if config.teacher_model_url and config.temperature != 1.0:
        yield (
            f"temperature ({config.temperature:g}): a teacher at --teacher_model_url scores at 1: "
            "use --temperature 1.0 or --teacher_pretrain"
        )
    if not config.no_task_reward and config.n_samples_per_prompt < 2:
        yield (
            f"n_samples_per_prompt ({config.n_samples_per_prompt}): the task's reward is judged within the "
            f"samples of a prompt: use 2 or more, or --no_task_reward"
        )


def _kl_without_place(config: Config) -> bool:
    """A KL coefficient with an estimator that takes no token rewards, and no KL in the loss."""
    return bool(config.init_kl_coef and not config.use_kl_loss and config.advantage_estimator in _CONSTANT)


@error
def kl_can_act(config: Config) -> Iterator[str]:
    if config.kl_controller == "adaptive" and config.init_kl_coef == 0:
        yield (
            "kl_controller adaptive multiplies init_kl_coef, and 0 stays 0: use --init_kl_coef 0.001 or "
            "--kl_controller fixed"
        )
    if _kl_without_place(config) and {"init_kl_coef", "kl_estimator"} & config.given:
        yield _no_place(config)


@warning
def kl_has_no_effect(config: Config) -> Iterator[str]:
    if _kl_without_place(config) and not {"init_kl_coef", "kl_estimator"} & config.given:
        yield _no_place(config)


def _no_place(config: Config) -> str:
    name = config.advantage_estimator
    return (
        f"init_kl_coef ({config.init_kl_coef:g}) cannot act: advantage_estimator {name} "
        "takes no penalty in the reward: add --use_kl_loss, or use --init_kl_coef 0"
    )


@error
def lengths_fit(config: Config) -> Iterator[str]:
    if config.prompt_max_len >= config.max_len:
        yield (
            f"prompt_max_len ({config.prompt_max_len}) must be below max_len ({config.max_len}), which holds "
            f"prompt and response: use --max_len {config.prompt_max_len + 1024} or --prompt_max_len "
            f"{max(1, config.max_len // 2)}"
        )


@error
def input_template_has_a_place(config: Config) -> Iterator[str]:
    if config.input_template is not None and "{}" not in config.input_template:
        yield f"input_template ({config.input_template!r}) must contain {{}}, where the prompt goes"


@error
def overlong_buffer_fits(config: Config) -> Iterator[str]:
    if config.overlong_buffer and not 0 < config.overlong_buffer_len < config.generate_max_len:
        yield (
            f"overlong_buffer_len ({config.overlong_buffer_len}) must be above 0 and below generate_max_len "
            f"({config.generate_max_len}) with --overlong_buffer: use {max(1, config.generate_max_len // 4)}"
        )


@error
def whole_prompts_fit_the_engine(config: Config) -> Iterator[str]:
    tokens = config.engine_max_num_batched_tokens
    if config.engine_chunked_prefill is False and tokens is not None and tokens < config.max_len:
        yield (
            f"engine_max_num_batched_tokens ({tokens}) must be at least max_len ({config.max_len}) with "
            f"--no_engine_chunked_prefill, or the longest sequence never fits a step: use {config.max_len}"
        )


@warning
def responses_reach_their_length(config: Config) -> Iterator[str]:
    total = config.prompt_max_len + config.generate_max_len
    if total > config.max_len > config.prompt_max_len:
        room = config.max_len - config.generate_max_len
        cut = f"prompts over {room} tokens get" if room > 0 else "all prompts get"
        yield (
            f"prompt_max_len ({config.prompt_max_len}) + generate_max_len ({config.generate_max_len}) = "
            f"{total} is over max_len ({config.max_len}): {cut} shorter responses. Use --max_len {total}"
        )


@warning
def actor_slower_than_critic(config: Config) -> Iterator[str]:
    if _needs_critic(config) and config.actor_learning_rate >= config.critic_learning_rate:
        yield (
            f"actor_learning_rate ({config.actor_learning_rate:g}) should be below critic_learning_rate "
            f"({config.critic_learning_rate:g}): the policy follows values that have not settled. "
            f"Use --critic_learning_rate {10 * config.actor_learning_rate:g}"
        )


@warning
def kl_target_is_small(config: Config) -> Iterator[str]:
    used = config.kl_controller == "adaptive" or config.policy_loss == "cpgd"
    if used and not _LOW_KL <= config.kl_target <= _HIGH_KL:
        nearest = _LOW_KL if config.kl_target < _LOW_KL else _HIGH_KL
        yield (
            f"kl_target ({config.kl_target:g}) lies outside {_LOW_KL}-{_HIGH_KL}, where training is known to "
            f"be stable: the nearest is {nearest}"
        )


@warning
def k1_is_no_loss(config: Config) -> Iterator[str]:
    if config.use_kl_loss and config.init_kl_coef > 0 and config.kl_estimator == "k1":
        yield (
            "kl_estimator k1 as a loss (--use_kl_loss): the expectation of its gradient is zero, so it only "
            "adds noise: use k2 or k3"
        )


@warning
def kl_counts_once(config: Config) -> Iterator[str]:
    if config.use_kl_loss and config.init_kl_coef > 0 and config.advantage_estimator == "reinforce++":
        yield (
            "advantage_estimator reinforce++ already has the KL penalty in its reward; --use_kl_loss adds it "
            f"to the loss, so that init_kl_coef {config.init_kl_coef:g} acts twice: leave --use_kl_loss out"
        )


@warning
def whole_distribution(config: Config) -> Iterator[str]:
    cuts = [f"top_p {config.top_p:g}"] * (config.top_p < 1) + [f"top_k {config.top_k}"] * (config.top_k > 0)
    if cuts:
        yield (
            f"{' and '.join(cuts)}: responses are drawn from a cut distribution while the loss takes the "
            "log-probs of the whole one, which biases the ratio. What is trained is sampled with "
            "--top_p 1.0 --top_k 0"
        )


@error
def correction_leaves_tokens(config: Config) -> Iterator[str]:
    if config.rollout_is == "mask" and config.rollout_is_cap <= 1:
        yield (
            f"rollout_is_cap ({config.rollout_is_cap:g}) with --rollout_is mask keeps ratios within "
            "[1 / cap, cap], and nothing is within it: use 2"
        )


@warning
def gspo_clips_close_to_one(config: Config) -> Iterator[str]:
    if config.policy_loss == "gspo" and min(config.clip_range, config.clip_range_higher) > _WIDE_FOR_GSPO:
        yield (
            f"clip_range ({config.clip_range:g}) and clip_range_higher ({config.clip_range_higher:g}) "
            "never clip with gspo, whose ratio is a mean over the response: its paper uses --clip_range 3e-4 "
            "--clip_range_higher 4e-4"
        )


@warning
def gamma_discounts(config: Config) -> Iterator[str]:
    if "gamma" in config.given and config.advantage_estimator in _CONSTANT:
        name = config.advantage_estimator
        yield (
            f"gamma ({config.gamma:g}) has no effect: advantage_estimator {name} gives a response's "
            "tokens their advantage without a discount: leave --gamma out"
        )


RULES = (
    gamma_discounts,
    correction_leaves_tokens,
    gspo_clips_close_to_one,
    groups_need_samples,
    distillation_has_a_teacher,
    kl_can_act,
    kl_has_no_effect,
    lengths_fit,
    input_template_has_a_place,
    overlong_buffer_fits,
    whole_prompts_fit_the_engine,
    responses_reach_their_length,
    actor_slower_than_critic,
    kl_target_is_small,
    k1_is_no_loss,
    kl_counts_once,
    whole_distribution,
)
