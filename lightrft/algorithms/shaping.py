"""What happens to rewards before the estimator and to advantages after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightrft.algorithms.masking import masked, masked_sum


def clip_symmetric(x: Tensor, limit: float) -> Tensor:
    """`x` within +-`limit`; a limit of 0 turns clipping off. NaN stays NaN."""
    return x.clamp(-limit, limit) if limit > 0 else x


def whiten(x: Tensor, mask: Tensor, reduce_sum: Callable[[Tensor], Tensor]) -> Tensor:
    """`x [B, T]` with mean 0 and variance 1 over the masked-in tokens of **all** ranks; masked tokens stay 0.

    `reduce_sum` adds a tensor over ranks. The variance divides by the count (it is the batch's own, not an
    estimate of another's); an all-equal batch becomes 0. Two reductions, the second around the mean, since
    E[x**2] - mean**2 cancels in float32.
    """
    count, total = reduce_sum(torch.stack([mask.double().sum(), masked_sum(x.double(), mask)]))
    mean = total / count.clamp(min=1)
    centred = masked(x.double() - mean, mask)
    variance = reduce_sum(centred.square().sum()) / count.clamp(min=1)
    return (centred * torch.rsqrt(variance + 1e-8)).float()
