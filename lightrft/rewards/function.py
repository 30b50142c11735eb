"""`--reward path/to/file.py:function`: a user's own reward over a whole batch, run in this process.

    def function(prompts, responses, references):          # any of the three, and `rollouts` where wanted
        return [1.0, 0.0, None, {"reward": 0.5, "style": 0.2}]

The arguments are lists of one entry per rollout (prompts and responses `str`, references `list[str]`), passed
by name. One entry comes back for each: a number, None (excludes the sample), or a dict with "reward" and
named parts. It may keep a model or a client in its module, and it must return: no time limit can end code in
this process.

    def function(response, references):                    # a rule: one response, a list of references
        return 1.0

runs in worker processes instead, with a time limit for each response.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from lightrft.errors import ConfigError, RewardError
from lightrft.rewards.base import ReferenceProblem
from lightrft.rewards.rule import to_result
from lightrft.rewards.score import Score, as_score, excluded
from lightrft.types import Prompt, RewardResult, Rollout

log = logging.getLogger(__name__)

ARGUMENTS: dict[str, Callable[[Rollout], Any]] = {
    "prompts": lambda rollout: rollout.prompt.text,
    "responses": lambda rollout: rollout.text,
    "references": lambda rollout: rollout.prompt.references,
    "rollouts": lambda rollout: rollout,
}


def is_user_rule(function: Any, flag_value: str) -> bool:
    """Whether a user's function judges one `response`, as a rule does, and not a batch.

    Raises:
        ConfigError: it takes a `response` but no `references`.
    """
    names = list(inspect.signature(function).parameters) if callable(function) else []
    if "response" in names and "references" not in names:
        raise ConfigError(
            f"--reward {flag_value}: a function of one response takes (response, references); "
            f"this one takes ({', '.join(names)})"
        )
    return "response" in names


def accepted_arguments(function: Callable[..., Any], flag_value: str) -> list[str]:
    """Which of ARGUMENTS the function takes.

    Raises:
        ConfigError: it is not callable, takes none of them, or needs something else.
    """
    if not callable(function):
        raise ConfigError(f"--reward {flag_value}: this is a {type(function).__name__}, not a function")
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(ARGUMENTS)
    unknown = [
        p.name
        for p in parameters
        if p.name not in ARGUMENTS and p.default is p.empty and p.kind is not p.VAR_POSITIONAL
    ]
    accepted = [p.name for p in parameters if p.name in ARGUMENTS]
    if unknown or not accepted:
        raise ConfigError(
            f"--reward {flag_value}: a reward function takes any of {', '.join(ARGUMENTS)}, by these names; "
            + (f"this one asks for {', '.join(unknown)}" if unknown else "this one takes none")
        )
    return accepted


class FunctionReward:
    """Calls the function once for all rollouts; where it raises, once per rollout, to find whose fault it
    is.
    """

    def __init__(self, name: str, function: Callable[..., Any], flag_value: str):
        self.name = name
        self._function = function
        self._flag_value = flag_value
        self._arguments = accepted_arguments(function, flag_value)
        self._has_worked = False

    def __call__(self, rollouts: Sequence[Rollout]) -> RewardResult:
        if not rollouts:
            return to_result([])
        try:
            scores = self._scores(rollouts)
        except RewardError:
            raise
        except Exception as error:
            log.exception("--reward %s failed on a batch; scoring its samples one by one", self._flag_value)
            scores = self._one_by_one(rollouts, error)
        self._has_worked = True
        return to_result(scores)

    def _scores(self, rollouts: Sequence[Rollout]) -> list[Score]:
        columns = {name: [ARGUMENTS[name](rollout) for rollout in rollouts] for name in self._arguments}
        returned = self._function(**columns)
        if hasattr(returned, "tolist"):  # a tensor or an array
            returned = returned.tolist()
        if not isinstance(returned, (list, tuple)):
            raise RewardError(
                f"--reward {self._flag_value} returned a {type(returned).__name__}: it must return a list"
            )
        if len(returned) != len(rollouts):  # which belongs to which cannot be guessed
            raise RewardError(
                f"--reward {self._flag_value}: {len(returned)} rewards for {len(rollouts)} responses; "
                "return one entry each, None where there is no score"
            )
        try:
            return [as_score(value) for value in returned]
        except TypeError as error:
            raise RewardError(f"--reward {self._flag_value}: {error}") from error

    def _one_by_one(self, rollouts: Sequence[Rollout], first: Exception) -> list[Score]:
        scores = []
        for rollout in rollouts:
            try:
                scores += self._scores([rollout])
            except RewardError:
                raise
            except Exception as error:
                log.warning("--reward %s: sample excluded: %r", self._flag_value, error)
                scores.append(excluded("error"))
        if not self._has_worked and all(score.status == "error" for score in scores):
            raise RewardError(
                f"--reward {self._flag_value} fails on every response: {type(first).__name__}: {first}"
            ) from first
        return scores

    def check_references(self, prompts: Sequence[Prompt]) -> list[ReferenceProblem]:
        """None: what a user's function needs is not known."""
        return []

    def close(self) -> None:
        """Nothing to end."""
