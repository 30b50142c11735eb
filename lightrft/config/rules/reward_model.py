"""Rules of reward models: named, there, and able to score what the policy writes."""

from __future__ import annotations

from collections.abc import Iterator

from lightrft.config.messages import alternatives
from lightrft.config.model_files import (
    REWARD_HEAD,
    absence,
    label_count,
    missing_files,
    model_folder,
    read_config,
    reward_model_problem,
    weight_names,
)
from lightrft.config.resolve import Config
from lightrft.config.reward_spec import MODEL, RewardModelSpec, parse_reward_models
from lightrft.config.rules.rule import error, warning


def _named(config: Config) -> tuple[RewardModelSpec, ...]:
    return () if config.reward_pretrain is None else parse_reward_models(config.reward_pretrain)


@error
def reward_models_are_named(config: Config) -> Iterator[str]:
    named = [model.reward for model in _named(config)]
    for spec in config.rewards:
        if spec.kind == MODEL and spec.name not in named:
            yield (
                f"--reward {spec.name}: --reward_pretrain {config.reward_pretrain} has no such model: use "
                f"{alternatives(named)}"
            )


@warning
def reward_models_are_used(config: Config) -> Iterator[str]:
    used = config.reward_models
    unused = [model.reward for model in _named(config) if used and model not in used]
    if unused:
        yield (
            f"--reward_pretrain: no reward uses {', '.join(unused)}, which is not loaded: add it to --reward "
            f"{' '.join(config.reward)}, or leave it out"
        )


@error
def reward_models_are_here(config: Config) -> Iterator[str]:
    for model in config.reward_models:
        problems = list(_problems(model.path, config))
        if problems:
            given = "reward_pretrain" in config.given
            origin = "" if given else " (not given, so the same as --pretrain)"
            yield f"--reward_pretrain {model.path}{origin}: {'; '.join(problems)}"


def _problems(name: str, config: Config) -> Iterator[str]:
    folder, missing = model_folder(name, config.hub), absence(name, config.hub)
    if missing:
        yield missing
    if folder is None:
        return
    found = read_config(folder)
    if found is not None:
        architectures = [str(architecture) for architecture in found.get("architectures") or []]
        problem = reward_model_problem(architectures, label_count(found)) or _headless(weight_names(folder))
        if problem:
            yield problem
    yield from missing_files(folder)


def _headless(names: set[str]) -> str | None:
    """Why these weights have no head; None where they have one, or are not known."""
    if not names or any(REWARD_HEAD in name.split(".") for name in names):
        return None
    return (
        f"none of its {len(names)} weights is of a head named {REWARD_HEAD!r}: a reward model is a decoder "
        "with a head on its last token"
    )


@error
def reward_models_read_text(config: Config) -> Iterator[str]:
    if config.modality == "vision" and config.reward_models:
        yield (
            f"--reward {config.reward_models[0].reward}: reward models read text and see no pictures: use a "
            "rule, or a function of your own (path/to/file.py:function)"
        )


@warning
def reward_models_reach_max_len(config: Config) -> Iterator[str]:
    for model in config.reward_models:
        found = read_config(model_folder(model.path, config.hub)) or {}
        longest = found.get("max_position_embeddings") or found.get("n_positions")
        if isinstance(longest, int) and config.max_len > longest:
            yield (
                f"max_len ({config.max_len}) is over the {longest} positions of --reward_pretrain "
                f"{model.path}: longer samples get no score and are excluded; use --max_len {longest}"
            )


RULES = (
    reward_models_are_named,
    reward_models_are_used,
    reward_models_are_here,
    reward_models_read_text,
    reward_models_reach_max_len,
)
