"""Sums, means and counts over masked `[B, T]` tensors.

A masked position may hold anything, NaN and infinity included: it is replaced before it is used, never
multiplied by 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

# Values that differ by less than this share of their size count as equal: what is left of a tie after float32
# arithmetic must never be divided by a spread of nearly 0.
TIE = 1e-6

LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def masked(x: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """`x` where `mask` is set, `fill` elsewhere; gradients of masked positions are exactly 0."""
    return torch.where(mask.bool(), x, torch.full((), fill, dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over all masked-in positions, a scalar."""
    return masked(x, mask).sum()


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Largest masked-in value of an `x` that is never negative, a scalar; 0 where nothing is masked in."""
    return masked(x, mask).amax() if x.numel() else x.new_zeros(())


def sequence_count(mask: Tensor) -> Tensor:
    """How many rows of `mask [B, T]` have a response token, a float scalar."""
    return (mask.sum(-1) > 0).float().sum()


def loss_denominator(mask: Tensor, mode: LossAggMode) -> Tensor:
    """What the summed loss of `mask [B, T]` is to be divided by: tokens or sequences, a float scalar.

    It is added over micro-batches and ranks before the one division, so that no cut of the batch shows.
    """
    return mask.float().sum() if mode == "token-mean" else sequence_count(mask)


def aggregate_loss(token_losses: Tensor, mask: Tensor, mode: LossAggMode, max_response_len: int) -> Tensor:
    """The **sum** of `token_losses [B, T]` over what `loss_denominator` counts, a scalar.

    - `token-mean` (DAPO, arXiv 2503.14476): every token weighs the same;
    - `seq-mean-token-sum`: each sequence's sum;
    - `seq-mean-token-mean` (GRPO, arXiv 2402.03300): each sequence's mean;
    - `seq-mean-token-sum-norm` (Dr.GRPO, arXiv 2503.20783): each sequence's sum over `max_response_len`.

    Token losses [1, 1] and [3, 3, 3, 3] give 2.3333, 7.0, 2.0 and (length 4) 1.75 once divided.
    """
    losses = masked(token_losses, mask)
    if mode == "seq-mean-token-mean":
        return (losses.sum(-1) / mask.sum(-1).clamp(min=1)).sum()
    if mode == "seq-mean-token-sum-norm":
        return losses.sum() / max_response_len
    return losses.sum()
