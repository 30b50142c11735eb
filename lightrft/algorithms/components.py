"""Estimators and losses by the value of their flag, built in or a user's own, held to their contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightrft import registry
from lightrft.algorithms.advantages._common import AdvantageInputs, AdvantageOutputs
from lightrft.algorithms.losses._common import LossOptions
from lightrft.errors import ConfigError
from lightrft.types import LossInputs, LossOutputs

PolicyLoss = Callable[[LossInputs, LossOptions], LossOutputs]


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator and what it asks of the run."""

    compute: Callable[[AdvantageInputs], AdvantageOutputs]
    needs_groups: bool = False
    needs_critic: bool = False
    needs_teacher: bool = False
    whitens: bool = False
    kl_in_reward: bool = False  # the KL penalty belongs to its reward, whatever else uses the KL


def load_estimator(value: str) -> Estimator:
    """The estimator of `--advantage_estimator value`.

    A user's object is a function of `AdvantageInputs`, or has one called `compute`; it may say
    `NEEDS_GROUPS`, `NEEDS_CRITIC`, `NEEDS_TEACHER`, `WHITENS`.

    Raises:
        ConfigError: it is unknown, cannot be imported, or cannot be called with one argument.
    """
    flag = "--advantage_estimator"
    found = registry.load("algorithms/advantages", value, flag)
    says = {name.lower(): bool(getattr(found, name, False)) for name in _LITERALS}
    return Estimator(_callable(found, 1, f"{flag} {value}", "(inputs: AdvantageInputs)"), **says)


_LITERALS = ("NEEDS_GROUPS", "NEEDS_CRITIC", "NEEDS_TEACHER", "WHITENS", "KL_IN_REWARD")


def load_loss(value: str) -> PolicyLoss:
    """The loss of `--policy_loss value`: a function of `(LossInputs, LossOptions)`, or an object's `compute`.

    Raises:
        ConfigError: see `load_estimator`.
    """
    found = registry.load("algorithms/losses", value, "--policy_loss")
    contract = "(inputs: LossInputs, options: LossOptions)"
    return _callable(found, 2, f"--policy_loss {value}", contract)


def _callable(found: Any, arguments: int, named: str, contract: str) -> Callable[..., Any]:
    function = getattr(found, "compute", found)
    if not callable(function):
        raise ConfigError(
            f"{named}: it is neither a function nor has one called compute; expected {contract}"
        )
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigError(
            f"{named}: compute takes {inspect.signature(function)}; expected {contract}"
        ) from error
    return function  # type: ignore[no-any-return]
