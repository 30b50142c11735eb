"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups that teach nothing make room for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lightrft.algorithms.filtering import informative_groups
from lightrft.data.batching import group_ids
from lightrft.distributed.collectives import any_rank
from lightrft.trainer.metrics import MetricSums
from lightrft.types import RewardResult, RewardStatus, Rollout


@dataclass(frozen=True)
class Scored:
    """One group: the samples of a prompt, with their scores."""

    rollouts: list[Rollout]
    rewards: list[float | None]
    statuses: list[RewardStatus]
    parts: dict[str, list[float | None]]


def split_groups(rollouts: list[Rollout], result: RewardResult) -> tuple[list[Scored], list[Scored]]:
    """(groups whose rewards differ, groups that are tied), each in the rollouts' order."""
    ids = torch.tensor(group_ids(rollouts))
    rewards = torch.tensor([float("nan") if r is None else r for r in result.rewards])
    informative = informative_groups(rewards, ids)
    out: tuple[list[Scored], list[Scored]] = ([], [])
    for group in dict.fromkeys(ids.tolist()):
        rows = (ids == group).nonzero().flatten().tolist()
        scored = Scored(
            [rollouts[i] for i in rows],
            [result.rewards[i] for i in rows],
            [result.statuses[i] for i in rows] if result.statuses else [],
            {name: [values[i] for i in rows] for name, values in result.parts.items()},
        )
        out[0 if bool(informative[rows[0]]) else 1].append(scored)
    return out


def join_groups(groups: list[Scored]) -> tuple[list[Rollout], RewardResult]:
    """The inverse of `split_groups` for groups of any rounds; a part that a group lacks is None there."""
    names = dict.fromkeys(name for g in groups for name in g.parts)
    return [r for g in groups for r in g.rollouts], RewardResult(
        rewards=[r for g in groups for r in g.rewards],
        parts={n: [v for g in groups for v in g.parts.get(n, [None] * len(g.rollouts))] for n in names},
        statuses=[s for g in groups for s in g.statuses],
    )


class DynamicSampler:
    """Samples further prompts until every rank has as many informative groups as it started with.

    All ranks go through the same number of rounds, decided together. What is missing after
    `max_gen_batches` rounds is filled with tied groups whose rewards are taken away: they keep the shapes
    equal on all ranks and train nothing. Groups beyond the need are dropped: kept for the next step, they
    would come from older weights.
    """

    def __init__(
        self,
        generate: Callable[[], list[Rollout]],
        reward: Callable[[list[Rollout]], RewardResult],
        max_gen_batches: int,
        device: torch.device,
    ) -> None:
        self.generate = generate
        self.reward = reward
        self.max_gen_batches = max_gen_batches
        self.device = device

    def complete(
        self, rollouts: list[Rollout], result: RewardResult, metrics: MetricSums
    ) -> tuple[list[Rollout], RewardResult]:
        """As many groups as in `rollouts`, informative as far as they could be found."""
        kept, tied = split_groups(rollouts, result)
        needed, rounds, sampled = len(kept) + len(tied), 1, len(kept) + len(tied)
        while rounds < self.max_gen_batches and any_rank(len(kept) < needed, self.device):
            more = self.generate()
            found, useless = split_groups(more, self.reward(more))
            kept, tied = kept + found, tied + useless
            sampled += len(found) + len(useless)
            rounds += 1
        metrics.add("sampling/rounds", rounds)
        metrics.add("sampling/informative_share", len(kept), sampled)
        kept = kept[:needed]
        missing = [_without_rewards(group) for group in tied[: needed - len(kept)]]
        metrics.add_total("sampling/missing_groups", len(missing))
        return join_groups(kept + missing)


def _without_rewards(group: Scored) -> Scored:
    nothing: list[float | None] = [None] * len(group.rollouts)
    return Scored(group.rollouts, nothing, group.statuses, group.parts)
