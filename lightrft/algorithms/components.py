"""Estimators and losses by the value of their flag, built in or a user's own, held to their contract."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lightrft import registry
from lightrft.algorithms.advantages._common import AdvantageInputs, AdvantageOutputs, included
from lightrft.algorithms.losses._common import LossOptions
from lightrft.algorithms.masking import masked
from lightrft.errors import ConfigError
from lightrft.types import LossInputs, LossOutputs

Compute = Callable[[AdvantageInputs], AdvantageOutputs]
PolicyLoss = Callable[[LossInputs, LossOptions], LossOutputs]

# What an estimator says of itself, at the top of its file, where the front end finds it without an import.
LITERALS = ("NEEDS_GROUPS", "NEEDS_CRITIC", "NEEDS_TEACHER", "WHITENS", "KL_IN_REWARD")


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator and what it asks of the run."""

    compute: Compute
    needs_groups: bool = False  # two samples of a prompt or more
    needs_critic: bool = False
    needs_teacher: bool = False
    whitens: bool = False  # the caller whitens its advantages, once, over all ranks
    kl_in_reward: bool = False  # the KL penalty belongs to its reward, whatever else uses the KL


def load_estimator(value: str) -> Estimator:
    """The estimator of `--advantage_estimator value`.

    A user's object is a function of `AdvantageInputs`, or has one called `compute`. What it needs stands at
    the top of its file, or on the object: `NEEDS_GROUPS`, `NEEDS_CRITIC`, `NEEDS_TEACHER`, `WHITENS`,
    `KL_IN_REWARD`, each True or False (where it is missing). What it returns at masked positions and in
    excluded rows is replaced by 0.

    Raises:
        ConfigError: it is unknown, cannot be imported, cannot be called with one argument, or says
            something else than True or False. Its `compute` raises it for a result of another form.
    """
    named = f"--advantage_estimator {value}"
    found = registry.load("algorithms/advantages", value, "--advantage_estimator")
    compute: Compute = _callable(found, 1, named, "(inputs: AdvantageInputs)")
    says = {name.lower(): _literal(found, name, named) for name in LITERALS}
    if not registry.is_user_path(value):
        return Estimator(compute, **says)

    def checked(inputs: AdvantageInputs) -> AdvantageOutputs:
        outputs = compute(inputs)
        shape = inputs.response_mask.shape
        _check_result(outputs, AdvantageOutputs, "advantages", shape, named)
        if says["needs_critic"]:
            _check_result(outputs, AdvantageOutputs, "returns", shape, named)
        return replace(outputs, advantages=masked(outputs.advantages, included(inputs)))

    return Estimator(checked, **says)


def load_loss(value: str) -> PolicyLoss:
    """The loss of `--policy_loss value`: a function of `(LossInputs, LossOptions)`, or an object's `compute`.

    A user's loss is given 0 at masked positions, whatever stood there.

    Raises:
        ConfigError: see `load_estimator`.
    """
    named = f"--policy_loss {value}"
    found = registry.load("algorithms/losses", value, "--policy_loss")
    compute: PolicyLoss = _callable(found, 2, named, "(inputs: LossInputs, options: LossOptions)")
    if not registry.is_user_path(value):
        return compute

    def checked(inputs: LossInputs, options: LossOptions) -> LossOutputs:
        outputs = compute(_without_padding(inputs), options)
        _check_result(outputs, LossOutputs, "token_losses", inputs.response_mask.shape, named)
        return outputs

    return checked


def _without_padding(inputs: LossInputs) -> LossInputs:
    """0 at masked positions, which may hold NaN: a user's formula need not think of them."""
    mask = inputs.response_mask
    tensors = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    return replace(inputs, **{name: masked(x, mask) for name, x in tensors.items() if x is not None})


def _callable(found: Any, arguments: int, named: str, contract: str) -> Callable[..., Any]:
    function = getattr(found, "compute", None if inspect.isclass(found) else found)
    if not callable(function):
        kind = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{named}: it is {kind} without compute; expected {contract}, as a function or as the compute of "
            "an object"
        )
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        hint = ": name an instance, or make compute a staticmethod" if inspect.isclass(found) else ""
        raise ConfigError(
            f"{named}: compute takes {inspect.signature(function)}; expected {contract}{hint}"
        ) from error
    return function  # type: ignore[no-any-return]


def _literal(found: Any, name: str, named: str) -> bool:
    module = sys.modules.get(getattr(found, "__module__", ""))
    value = getattr(found, name, getattr(module, name, False))
    if not isinstance(value, bool):
        raise ConfigError(f"{named}: {name} is {value!r}; it must be True or False")
    return value


def _check_result(outputs: object, kind: type, name: str, shape: torch.Size, named: str) -> None:
    """A user's own result, before a wrong form of it surfaces as an error somewhere else."""
    if not isinstance(outputs, kind):
        raise ConfigError(f"{named}: compute returned a {type(outputs).__name__}; expected a {kind.__name__}")
    tensor = getattr(outputs, name)
    if not isinstance(tensor, Tensor) or tensor.shape != shape or not tensor.is_floating_point():
        got = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
        raise ConfigError(f"{named}: {name} is {got}; expected floating point {list(shape)}, one per token")
