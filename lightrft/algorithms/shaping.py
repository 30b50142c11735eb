"""What happens to rewards before the estimator and to advantages after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightrft.algorithms.masking import TIE, masked, masked_sum


def clip_symmetric(x: Tensor, limit: float) -> Tensor:
    """`x` within +-`limit`; a limit of 0 turns clipping off. NaN stays NaN."""
    return x.clamp(-limit, limit) if limit > 0 else x


def whiten(x: Tensor, mask: Tensor, reduce_sum: Callable[[Tensor], Tensor]) -> Tensor:
    """`x [B, T]` with mean 0 and variance 1 over the masked-in tokens of **all** ranks; masked tokens stay 0.

    `reduce_sum` adds a tensor over ranks. The variance divides by the count (it is the batch's own, not an
    estimate of another's). Two reductions, the second around the mean, since E[x**2] - mean**2 cancels. A
    batch whose values are equal, up to the rounding of float32, becomes exactly 0.
    """
    count, total = reduce_sum(torch.stack([mask.double().sum(), masked_sum(x.double(), mask)]))
    mean = total / count.clamp(min=1)
    centred = masked(x.double() - mean, mask)
    variance = reduce_sum(centred.square().sum()) / count.clamp(min=1)
    whitened = centred * torch.rsqrt(variance + 1e-8)
    return masked(whitened, variance.sqrt() > TIE * mean.abs()).to(x.dtype)


def overlong_penalty(lengths: Tensor, max_len: int, buffer: int, factor: float) -> Tensor:
    """DAPO's soft punishment (arXiv 2503.14476, eq. 13), what is added to each reward `[B]`: 0 or negative.

    Responses of up to `max_len - buffer` tokens are free; then it falls linearly to -`factor` at `max_len`.
    Max 20, buffer 4, factor 1: length 16 -> 0, 17 -> -.25, 20 -> -1.
    """
    beyond = lengths.double() - (max_len - buffer)
    return -(beyond / buffer * factor).clamp(min=0).float()


class RunningMoments:
    """Mean and variance of all rewards so far, over all ranks (Chan's merge, in float64).

    A step's own rewards are merged before they are normalised, so that the first step is normalised too.
    """

    def __init__(self) -> None:
        self.count, self.mean, self.m2 = 0.0, 0.0, 0.0

    def update(self, values: Tensor, reduce_sum: Callable[[Tensor], Tensor]) -> None:
        """Merge `values [B]`; NaN is no value. Collective."""
        known = values[~values.isnan()].double()
        own = torch.stack([torch.tensor(float(known.numel()), dtype=torch.float64), known.sum().cpu()])
        count, total = (float(v) for v in reduce_sum(own.to(values.device)))
        if count == 0:
            return
        mean = total / count
        m2 = float(reduce_sum((known - mean).square().sum()))
        delta, merged = mean - self.mean, self.count + count
        self.m2 += m2 + delta**2 * self.count * count / merged
        self.mean += delta * count / merged
        self.count = merged

    def normalise(self, values: Tensor, minus_mean: bool) -> Tensor:
        """`values [B]` over the running (unbiased) std, less the running mean where asked for. NaN stays.

        While nothing varies there is nothing to divide by, and values come back as they are.
        """
        std = (self.m2 / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0
        centred = values - self.mean if minus_mean else values
        return centred / std if std > TIE * abs(self.mean) else centred

    def state_dict(self) -> dict[str, float]:
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.count, self.mean, self.m2 = state["count"], state["mean"], state["m2"]
