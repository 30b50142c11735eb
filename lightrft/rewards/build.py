"""From the words of `--reward NAME[:WEIGHT] …` to one Reward."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightrft import registry
from lightrft.config.flags import FLAGS
from lightrft.config.reward_spec import MODEL, RewardSpec, parse_reward
from lightrft.errors import ConfigError
from lightrft.rewards.base import Reward
from lightrft.rewards.composite import CompositeReward
from lightrft.rewards.function import FunctionReward, is_user_rule
from lightrft.rewards.pool import GraderPool, PoolOptions
from lightrft.rewards.rule import RuleReward, check_here, grade_here
from lightrft.rewards.worker import RULES


@dataclass(frozen=True)
class RewardOptions:
    """What the rewards of a run share."""

    timeout: float = 10.0  # seconds that grading one sample may take
    num_workers: int = 0  # grader processes of this rank; 0: see `pool.default_workers`


def parse_rewards(words: Sequence[str], models: Collection[str] = ()) -> list[RewardSpec]:
    """All words of the flag; every fault among them in one error. `models` are the names of reward models.

    Raises:
        ConfigError: a weight is no finite number, a name is unknown, not available yet, or given twice.
    """
    specs, faults = [], []
    for word in words:
        try:
            spec = parse_reward(word)
        except ValueError as error:
            faults.append(f"--reward {error}")
            continue
        specs.append(spec)
        faults += _name_faults(spec, models)
    names = [metric_name(spec) for spec in specs]
    faults += [f"--reward: {name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if not words:
        faults.append(f"--reward: give at least one of {', '.join(registry.names(RULES))}")
    if faults:
        raise ConfigError("\n".join(faults))
    return specs


def _name_faults(spec: RewardSpec, models: Collection[str]) -> list[str]:
    name, known = spec.name, [*registry.names(RULES), *models]
    if registry.is_user_path(name) or name in known:
        return []
    choices = f"choose from {', '.join(known)}, or give path/to/file.py:function"
    if spec.kind == MODEL:
        return [f"--reward {name}: no such reward model is loaded here; {choices}"]
    planned = FLAGS["reward"].planned_choices
    if name in planned:
        return [f"--reward {name}: not available yet ({planned[name]}); {choices}"]
    near = difflib.get_close_matches(name, known, n=1)
    return [f"--reward {name}: unknown; {f'did you mean {near[0]}? ' if near else ''}{choices}"]


def metric_name(spec: RewardSpec) -> str:
    """What the metrics of a reward are called: the rule's name, or the user's function's."""
    return spec.name.rpartition(":")[2]


def build_reward(
    words: Sequence[str], options: RewardOptions | None = None, models: Sequence[Reward] = ()
) -> Reward:
    """The reward that `--reward` describes. Starts no process: workers start with the first sample.

    `models` are the reward models that it may name.

    Raises:
        ConfigError: see `parse_rewards`; or a user's file cannot be imported, or is no reward function.
    """
    by_name = {model.name: model for model in models}
    specs = parse_rewards(words, by_name)
    options = options or RewardOptions()
    names = [spec.name for spec in specs if spec.name not in by_name]
    loaded = {name: registry.load(RULES, name, "--reward") for name in names}
    in_workers = [name for name, found in loaded.items() if _runs_in_worker(name, found)]
    pool = GraderPool(in_workers, PoolOptions(options.timeout, options.num_workers)) if in_workers else None
    components = [
        (by_name.get(spec.name) or _component(spec, loaded[spec.name], pool), spec.weight) for spec in specs
    ]
    return CompositeReward(components, pool)


def _runs_in_worker(name: str, loaded: Any) -> bool:
    return is_user_rule(loaded, name) if registry.is_user_path(name) else not loaded.IN_PROCESS


def _component(spec: RewardSpec, loaded: Any, pool: GraderPool | None) -> Reward:
    in_worker = _runs_in_worker(spec.name, loaded)
    if registry.is_user_path(spec.name) and not in_worker:
        return FunctionReward(metric_name(spec), loaded, spec.name)
    if pool is not None and in_worker:
        grade, check = partial(pool.grade, spec.name), partial(pool.check, spec.name)
    else:
        grade, check = partial(grade_here, loaded.score), partial(check_here, loaded)
    needs_references = getattr(loaded, "NEEDS_REFERENCES", False)
    return RuleReward(
        metric_name(spec), grade, check if needs_references else None, getattr(loaded, "PARTS", ())
    )
