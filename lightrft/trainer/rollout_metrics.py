"""What can be said of rollouts, rewards, gaps and advantages: as sums and counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lightrft.algorithms.advantages._common import zero_spread_groups
from lightrft.algorithms.correction import gap_metrics
from lightrft.algorithms.masking import masked_sum
from lightrft.distributed.collectives import reduce_sum
from lightrft.trainer.metrics import MetricSums
from lightrft.types import Experience, RewardResult, Rollout


def rollout_metrics(rollouts: Sequence[Rollout], result: RewardResult, experience: Experience) -> MetricSums:
    """What can be said before any model looks at the rollouts."""
    metrics = MetricSums()
    n = len(rollouts)
    statuses = result.statuses or ["error"] * n
    scored = [r for r in result.rewards if r is not None]
    metrics.add("rollout/reward", sum(scored), len(scored))
    metrics.add("rollout/pass_rate", sum(passed(result, i) for i in range(n)), len(scored))
    metrics.add("rollout/response_length", sum(len(r.token_ids) for r in rollouts), n)
    metrics.add("rollout/truncated_share", sum(r.finish_reason == "length" for r in rollouts), n)
    metrics.add("rollout/unparsed_share", sum(s == "unparsed" for s in result.statuses), n)
    # A reward that failed; what dynamic sampling took away was graded, and is counted under sampling/.
    failed = [r is None and s in ("error", "timeout") for r, s in zip(result.rewards, statuses, strict=True)]
    metrics.add("rollout/excluded_share", sum(failed), n)
    tied, groups = zero_spread_groups(experience.rewards, experience.group_ids)
    metrics.add("rollout/zero_spread_share", tied, groups)
    for name, values in result.parts.items():
        known = [v for v in values if v is not None]
        metrics.add(f"reward/{name}", sum(known), len(known))
    return metrics


def passed(result: RewardResult, i: int) -> bool:
    """Did response `i` solve its task?

    A part called `answer` decides where there is one (a format bonus is no solution); else the first of
    several rewards, unweighted; else the reward itself. It must reach 1.
    """
    answers = [name for name in result.parts if name.rpartition("/")[2] == "answer"]
    name = next(iter(answers or result.parts), None)
    value = result.rewards[i] if name is None else result.parts[name][i]
    return value is not None and value >= 1.0 - 1e-6


def add_gap_metrics(experience: Experience, metrics: MetricSums, cap: float, device: torch.device) -> None:
    """How far the engine's log-probs are from the trainer's, on the tokens for which the engine gave any."""
    assert experience.old_logprobs is not None and experience.rollout_logprobs is not None
    sums, largest = gap_metrics(
        experience.old_logprobs,
        experience.rollout_logprobs,
        experience.response_mask,
        cap,
        lambda x: reduce_sum(x.to(device)).cpu(),
    )
    for name, (total, count) in sums.items():
        metrics.add(f"rollout/{name}", total, count)
    metrics.add_max("rollout/logprob_gap_max", largest)


def add_advantage_metrics(experience: Experience, metrics: MetricSums) -> None:
    """Mean and spread of the advantages, and what there is to train on."""
    assert experience.advantages is not None
    mask, advantages = experience.response_mask, experience.advantages
    metrics.add("policy/advantage_mean", masked_sum(advantages, mask), mask.sum())
    metrics.add("policy/advantage_abs_mean", masked_sum(advantages.abs(), mask), mask.sum())
    metrics.add("policy/advantage_square_mean", masked_sum(advantages.square(), mask), mask.sum())
    metrics.add_total("train/tokens", mask.sum())
    metrics.add_total("train/samples", (mask.sum(-1) > 0).sum())
