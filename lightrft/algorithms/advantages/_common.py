"""What estimators share: their inputs, group statistics, the token stage."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightrft.algorithms.masking import TIE, masked

EPSILON = 1e-6  # beside the std of a group


@dataclass(frozen=True)
class AdvantageInputs:
    """One rank's samples of a step; every sample of a group is among them.

    `token_rewards` holds the shaped reward that is not the task's (the KL penalty); the estimator adds the
    task's own reward, `rewards`, at each row's last response token.
    """

    rewards: Tensor  # [B] float32, shaped; NaN excludes the row
    group_ids: Tensor  # [B] int64
    response_mask: Tensor  # [B, T]
    token_rewards: Tensor  # [B, T] float32
    gamma: float = 1.0
    group_std: bool = True  # False: subtract the mean only (Dr.GRPO)
    values: Tensor | None = None  # [B, T] float32 by the critic, before the update
    lambd: float = 0.95
    old_logprobs: Tensor | None = None  # [B, T] float32
    teacher_logprobs: Tensor | None = None  # [B, T] float32
    opd_kl_coef: float = 1.0
    task_reward: bool = True  # False: distillation by the teacher alone


@dataclass(frozen=True)
class AdvantageOutputs:
    """Advantages `[B, T]` float32; with a critic, the returns that its values are to match, `[B, T]`."""

    advantages: Tensor
    returns: Tensor | None = None


@dataclass(frozen=True)
class GroupStats:
    """Statistics of each row's group over its rows with a reward, spread back to rows: all `[B]`."""

    mean: Tensor
    std: Tensor  # unbiased; 0 for a group of one
    size: Tensor
    tied: Tensor  # bool: the rewards are equal, or there is but one


def group_stats(rewards: Tensor, group_ids: Tensor) -> GroupStats:
    """`rewards [B]` (NaN: not counted) and `group_ids [B]` -> statistics per row. Computed in float64."""
    valid = ~rewards.isnan()
    x = masked(rewards.double(), valid)
    group = torch.searchsorted(torch.sort(group_ids).values.contiguous(), group_ids)  # first place of its id

    def per_group(values: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(0, group, values)

    size = per_group(valid.double())
    mean = per_group(x) / size.clamp(min=1)
    deviation = masked(x - mean[group], valid)
    std = (per_group(deviation.square()) / (size - 1).clamp(min=1)).sqrt()
    largest = torch.zeros_like(mean).scatter_reduce_(0, group, deviation.abs(), "amax")
    scale = torch.zeros_like(mean).scatter_reduce_(0, group, x.abs(), "amax")
    tied = (size < 2) | (2 * largest <= TIE * scale)
    return GroupStats(mean[group], std[group], size[group], tied[group])


def zero_spread_groups(rewards: Tensor, group_ids: Tensor) -> tuple[int, int]:
    """How many groups teach nothing because their rewards are tied, and how many groups there are."""
    tied = group_stats(rewards, group_ids).tied
    return len(set(group_ids[tied].tolist())), len(set(group_ids.tolist()))


def normalised_in_group(inputs: AdvantageInputs) -> Tensor:
    """(r - mean) / (std + 1e-6) of each row's group, or r - mean; float64 `[B]`, 0 in a tied group.

    NaN in an excluded row of a group that is not tied.
    """
    stats = group_stats(inputs.rewards, inputs.group_ids)
    scores = inputs.rewards.double() - stats.mean
    if inputs.group_std:
        scores = scores / (stats.std + EPSILON)
    return masked(scores, ~stats.tied)


def included(inputs: AdvantageInputs) -> Tensor:
    """Response tokens of the rows that have a reward, bool `[B, T]`: the only ones with an advantage."""
    return inputs.response_mask.bool() & ~inputs.rewards.isnan().unsqueeze(-1)


def token_rewards_with_score(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """`token_rewards` plus `scores [B]` at each row's last response token, `[B, T]`; 0 in excluded rows."""
    mask = included(inputs)
    rewards = masked(inputs.token_rewards, mask)
    last = (torch.arange(mask.shape[1], device=mask.device) * mask).amax(-1, keepdim=True)
    at_end = masked(scores.to(rewards.dtype).unsqueeze(-1), mask.any(-1, keepdim=True))
    return rewards.scatter_add(1, last, at_end)


def spread_over_response(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """`scores [B]` at every response token of its row, `[B, T]`; 0 in excluded rows."""
    mask = included(inputs)
    return masked(scores.to(inputs.token_rewards.dtype).unsqueeze(-1).expand(mask.shape), mask)


def rewards_to_go(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """The token stage A_t = R_t + gamma * A_{t+1}, `[B, T]`.

    `scores [B]` stands at the last response token, on top of `inputs.token_rewards`; a row without a reward
    is 0 throughout. A masked token in the middle is skipped, as if it were not there.
    """
    mask = inputs.response_mask.bool()
    rewards = token_rewards_with_score(scores, inputs)
    if inputs.gamma == 1.0:  # the usual case, without a loop over time
        return masked(rewards.flip(-1).cumsum(-1).flip(-1), mask)
    out = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + inputs.gamma * running, running)
        out[:, t] = masked(running, mask[:, t])
    return out
