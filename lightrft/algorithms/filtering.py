"""Which tokens and which groups are worth training on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lightrft.algorithms.advantages._common import group_stats
from lightrft.algorithms.masking import masked

BINS = 512
ROUNDS = 3  # each looks BINS times closer: the threshold is exact to 1e-8 of the largest entropy


def informative_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Rows, bool `[B]`, whose group's rewards differ: the others have advantage 0 (dynamic sampling).

    `rewards [B]`, NaN where there is none, before any shaping: a length penalty would make a difference
    between answers that are equally right. A group with fewer than two rewards is not informative.
    """
    return ~group_stats(rewards, group_ids).tied


def entropy_threshold(
    entropy: Tensor,
    mask: Tensor,
    ratio: float,
    reduce_sum: Callable[[Tensor], Tensor],
    reduce_max: Callable[[Tensor], Tensor],
) -> float:
    """The entropy at and above which lies the top share `ratio` of the response tokens of **all** ranks.

    `entropy`, `mask` `[B, T]`: all of this rank's tokens of a step, so that the threshold does not depend on
    how they are cut. At least `ratio` of the tokens pass, more only where several share the last entropy.
    Found by counting tokens above equidistant edges and looking closer between two of them: no rank sends
    its tokens. Collective.
    """
    own = entropy[mask.bool()].double().clamp(min=0.0).sort().values
    largest = own[-1:].sum()  # 0 where this rank has no token
    # .07 x 100 is 7.000000000000001 in floating point, and must not ask for an eighth token.
    wanted = math.ceil(ratio * float(reduce_sum(mask.double().sum())) - 1e-6)
    low, high = 0.0, float(reduce_max(largest)) * (1 + 1e-9)
    for _ in range(ROUNDS):
        edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64, device=entropy.device)
        at_least = reduce_sum((own.numel() - torch.searchsorted(own, edges)).double())
        index = int((at_least >= wanted).sum()) - 1  # the last edge with enough tokens at or above it
        index = min(max(index, 0), BINS - 1)
        low, high = float(edges[index]), float(edges[index + 1])
    return low


def high_entropy_mask(entropy: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Response tokens whose entropy is at least `threshold`, 0 or 1 `[B, T]` (arXiv 2506.01939, eq. 6).

    The softmax of a certain token leaves an entropy a little below 0, which counts as 0.
    """
    high = entropy.double().clamp(min=0.0) >= threshold
    return masked(high.to(mask.dtype), mask)
