"""What happens to a tile of logits: the forward pass scans it, the backward pass turns it into its gradient.

`RowKernels` is the contract; here it is met with torch's own operations, on any device, in
`triton_logprob.py` with two kernels that read each logit once.

With x = (logit + bias) / T, m the largest x of a row so far, and d = x - m, a row's state is

    total = Σ exp(d)     weighted = Σ exp(d) d     target_logit = x of the target

which tiles of the vocabulary, and ranks that hold parts of it, add to in any order (the online softmax of
Milakov and Gimelshein, arXiv 1805.02867). At the end

    log Z = m + log total     log p = target_logit - log Z     H = log total - weighted / total

and with g and h the gradients of log p and H

    dL/dlogit_j = (g [j = target] - p_j (g + h (log p_j + H))) / T
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from lightrft.kernels.reference import UNDERFLOWS


@dataclass(frozen=True)
class RowState:
    """Of each row `[n]`, in float32 (float64 for float64 inputs); see above."""

    maximum: Tensor
    total: Tensor
    weighted: Tensor
    target_logit: Tensor  # -inf until a tile holds the target

    @classmethod
    def start(cls, num_rows: int, like: Tensor, dtype: torch.dtype) -> RowState:
        """Of no logits at all. The maximum is finite, so that no difference is inf - inf."""
        lowest = torch.finfo(dtype).min
        values = [lowest, 0.0, 0.0, -torch.inf]
        return cls(*(torch.full((num_rows,), v, dtype=dtype, device=like.device) for v in values))

    def rows(self, which: slice) -> RowState:
        """A view of some rows."""
        return replace(self, **{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def log_z(self) -> Tensor:
        return self.maximum + self.total.log()

    def entropy(self) -> Tensor:
        return self.total.log() - self.weighted / self.total


@dataclass(frozen=True)
class RowGradient:
    """What the gradient of each row's logits depends on, `[n]`; None where there is no entropy."""

    log_z: Tensor
    logprob_grad: Tensor
    entropy: Tensor | None
    entropy_grad: Tensor | None

    def select(self, rows: slice | Tensor) -> RowGradient:
        both = [None if t is None else t[rows] for t in (self.entropy, self.entropy_grad)]
        return RowGradient(self.log_z[rows], self.logprob_grad[rows], *both)

    def scaled(self, scale: Tensor) -> RowGradient:
        grad = None if self.entropy_grad is None else self.entropy_grad * scale
        return replace(self, logprob_grad=self.logprob_grad * scale, entropy_grad=grad)


@dataclass(frozen=True)
class Columns:
    """The part of the vocabulary that a tile holds."""

    target: Tensor  # [n] int64, of the whole vocabulary
    first: int  # the token of the tile's first column
    bias: Tensor | None  # [v]
    temperature: float


class RowKernels(Protocol):
    """`tile [n, v]` holds raw logits and may be overwritten."""

    def scan(self, tile: Tensor, columns: Columns, state: RowState, with_entropy: bool) -> None:
        """Add the tile to `state`, in place. `weighted` counts only `with_entropy`."""

    def gradient(self, tile: Tensor, columns: Columns, rows: RowGradient, out: Tensor) -> None:
        """Write dL/dlogit to `out [n, v]`, which may be `tile` itself."""


class TorchRows:
    """The contract in torch's operations."""

    def scan(self, tile: Tensor, columns: Columns, state: RowState, with_entropy: bool) -> None:
        x = _scaled(tile, columns)
        here, index = _within(columns, tile.shape[1])
        found = x.gather(1, index[:, None]).squeeze(1)
        state.target_logit.copy_(torch.where(here, found, state.target_logit))
        maximum = torch.maximum(state.maximum, x.amax(1))
        moved = state.maximum - maximum
        scale = moved.exp()
        x.sub_(maximum[:, None])
        if with_entropy:
            x.clamp_(min=UNDERFLOWS)
            p = x.exp()
            earlier = torch.where(state.total > 0, state.weighted + state.total * moved, 0)
            state.weighted.copy_(scale * earlier + x.mul_(p).sum(1))
        else:
            p = x.exp_()
        state.total.mul_(scale).add_(p.sum(1))
        state.maximum.copy_(maximum)

    def gradient(self, tile: Tensor, columns: Columns, rows: RowGradient, out: Tensor) -> None:
        logp = _scaled(tile, columns).sub_(rows.log_z[:, None])
        grad = rows.logprob_grad
        if rows.entropy is None or rows.entropy_grad is None:
            p = logp.exp_().mul_(-grad[:, None])
        else:
            logp.clamp_(min=UNDERFLOWS)
            slope = (logp + rows.entropy[:, None]).mul_(rows.entropy_grad[:, None]).add_(grad[:, None])
            p = logp.exp_().mul_(slope.neg_())
        here, index = _within(columns, tile.shape[1])
        p.scatter_add_(1, index[:, None], torch.where(here, grad, 0)[:, None])
        torch.mul(p, 1 / columns.temperature, out=p)
        if out is not tile:
            out.copy_(p)


def _scaled(tile: Tensor, columns: Columns) -> Tensor:
    """x of the tile, in its place."""
    if columns.bias is not None:
        tile.add_(columns.bias)
    return tile.mul_(1 / columns.temperature)


def _within(columns: Columns, num_columns: int) -> tuple[Tensor, Tensor]:
    """Which targets lie in the tile, and their columns (0 for the others)."""
    index = columns.target - columns.first
    here = (index >= 0) & (index < num_columns)
    return here, index.where(here, 0)
