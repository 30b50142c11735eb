"""Which tokens and which groups are worth training on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightrft.algorithms.advantages._common import group_stats
from lightrft.algorithms.masking import masked, masked_max

BINS = 512
ROUNDS = 3  # each narrows the interval of the threshold by BINS: to 1e-8 of the largest entropy


def informative_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Rows `[B]`, bool, whose group's rewards differ: the others have advantage 0 (dynamic sampling)."""
    return ~group_stats(rewards, group_ids).tied


def entropy_threshold(
    entropy: Tensor,
    mask: Tensor,
    ratio: float,
    reduce_sum: Callable[[Tensor], Tensor],
    reduce_max: Callable[[Tensor], Tensor],
) -> float:
    """The entropy above which lies the top share `ratio` of the response tokens of **all** ranks.

    By counting into bins and looking closer at the bin in question, so that no rank sends its tokens.
    """
    values = masked(entropy, mask).double()
    wanted = ratio * float(reduce_sum(mask.double().sum()))
    low, high = 0.0, float(reduce_max(masked_max(values, mask))) + 1e-9
    for _ in range(ROUNDS):
        edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64, device=entropy.device)
        at_least = torch.stack([masked(values >= edge, mask).sum() for edge in edges])
        above = reduce_sum(at_least.double())
        index = int((above >= wanted).sum()) - 1  # the last edge with enough tokens above it
        index = min(max(index, 0), BINS - 1)
        low, high = float(edges[index]), float(edges[index + 1])
    return low


def high_entropy_mask(entropy: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Response tokens with an entropy of at least `threshold`, float `[B, T]` (arXiv 2506.01939)."""
    return masked((entropy >= threshold).to(mask.dtype), mask)
