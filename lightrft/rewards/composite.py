"""The weighted sum of several rewards, as one reward."""

from __future__ import annotations

from collections.abc import Sequence

from lightrft.rewards.base import ReferenceProblem, Reward
from lightrft.rewards.pool import GraderPool
from lightrft.types import Prompt, RewardResult, RewardStatus, Rollout

# From bad to good: the status of a sum is the worst of its components.
SEVERITY: tuple[RewardStatus, ...] = ("error", "timeout", "unparsed", "ok")


class CompositeReward:
    """Sum of rewards by weight.

    Its parts are every component, unweighted, as `<name>`, and every part of a component as `<name>/<part>`.
    A sample that any component excludes is excluded: a sum without one of its terms would be another reward.
    """

    def __init__(self, components: Sequence[tuple[Reward, float]], pool: GraderPool | None = None):
        self.name = "+".join(reward.name for reward, _ in components)
        self._components = list(components)
        self._pool = pool

    def __call__(self, rollouts: Sequence[Rollout]) -> RewardResult:
        totals: list[float | None] = [0.0] * len(rollouts)
        statuses: list[RewardStatus] = ["ok"] * len(rollouts)
        seconds: list[float | None] = [None] * len(rollouts)
        parts: dict[str, list[float | None]] = {}
        for reward, weight in self._components:
            result = reward(rollouts)
            parts[reward.name] = result.rewards
            parts |= {f"{reward.name}/{part}": values for part, values in result.parts.items()}
            for i, value in enumerate(result.rewards):
                total = totals[i]
                totals[i] = None if total is None or value is None else total + weight * value
                statuses[i] = min(statuses[i], result.statuses[i], key=SEVERITY.index)
            for i, spent in enumerate(result.seconds):
                seconds[i] = seconds[i] if spent is None else (seconds[i] or 0.0) + spent
        return RewardResult(totals, parts, statuses, seconds)

    def check_references(self, prompts: Sequence[Prompt]) -> list[ReferenceProblem]:
        problems: dict[int, ReferenceProblem] = {}
        for reward, _ in self._components:
            for problem in reward.check_references(prompts):
                problems.setdefault(problem.index, problem)
        return [problems[index] for index in sorted(problems)]

    def close(self) -> None:
        for reward, _ in self._components:
            reward.close()
        if self._pool is not None:
            self._pool.close()
