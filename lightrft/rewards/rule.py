"""A rule - one function of a response and its references - as a Reward."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lightrft.rewards.base import ReferenceProblem
from lightrft.rewards.score import Score, as_score, excluded
from lightrft.types import Prompt, RewardResult, Rollout

Sample = tuple[str, Sequence[str]]  # response, references

NO_REFERENCE = "the row has no reference; --reference_key names the column that holds it"

log = logging.getLogger(__name__)


def to_result(scores: Sequence[Score], parts: Sequence[str] = ()) -> RewardResult:
    """Scores as columns. Each name in `parts` is there even when no score has it; a missing value is None."""
    names = list(dict.fromkeys([*parts, *(name for score in scores for name in score.parts)]))
    return RewardResult(
        rewards=[score.value for score in scores],
        parts={name: [score.parts.get(name) for score in scores] for name in names},
        statuses=[score.status for score in scores],
        seconds=[score.seconds for score in scores],
    )


def grade_here(score: Callable[..., Score], samples: Sequence[Sample]) -> list[Score]:
    """Run a rule in this process: for rules that cost microseconds and cannot hang."""
    return [_graded(score, response, references) for response, references in samples]


def _graded(score: Callable[..., Score], response: str, references: Sequence[str]) -> Score:
    began = time.perf_counter()
    try:
        verdict = as_score(score(response=response, references=references))
        return replace(verdict, seconds=time.perf_counter() - began)
    except Exception:
        log.exception("a grader failed; its sample is excluded")
        return excluded("error")


def check_here(rule: Any, references: Sequence[str]) -> list[str | None]:
    """Run a rule module's `check_reference`, where it has one, in this process."""
    check = getattr(rule, "check_reference", None)
    return [check(reference) if check else None for reference in references]


class RuleReward:
    """A rule as a Reward.

    `grade` and `check` run the rule, here or in worker processes. `check` None: any row can be graded.
    A pool behind them belongs to whoever made it.
    """

    def __init__(
        self,
        name: str,
        grade: Callable[[Sequence[Sample]], list[Score]],
        check: Callable[[Sequence[str]], list[str | None]] | None = None,
        parts: Sequence[str] = (),
    ):
        self.name = name
        self._grade = grade
        self._check = check
        self._parts = tuple(parts)

    def __call__(self, rollouts: Sequence[Rollout]) -> RewardResult:
        return to_result(self._grade([(r.text, r.prompt.references) for r in rollouts]), self._parts)

    def check_references(self, prompts: Sequence[Prompt]) -> list[ReferenceProblem]:
        """Rows without a reference, and rows of which no reference can be graded against."""
        if self._check is None:
            return []
        distinct = list(dict.fromkeys(ref for prompt in prompts for ref in prompt.references))
        problem_of = dict(zip(distinct, self._check(distinct), strict=True))
        problems = []
        for prompt in prompts:
            reasons = [problem_of[ref] for ref in prompt.references] or [NO_REFERENCE]
            if None not in reasons:
                problems.append(ReferenceProblem(prompt.index, prompt.source, f"{self.name}: {reasons[0]}"))
        return problems

    def close(self) -> None:
        """Nothing: a rule owns no process."""
