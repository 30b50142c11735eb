"""The choreography: products and row kernels over chunks, and the gradient by computing the logits again.

    forward    for each chunk of rows:   logits = hidden Wᵀ ─► scan ─► log Z, log p, H of each row
    backward   for each chunk of rows that have a gradient:
                   for each tile of columns:   logits = hidden Wᵀ ─► dlogits
                   dhidden = dlogits W          dW += dlogitsᵀ hidden

Everything is summed in an order that depends on shapes alone, so a run repeats bit for bit. The same serves a
head that is sharded over ranks by its vocabulary (`Head.reduce`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightrft.kernels import products
from lightrft.kernels.reference import IGNORED, compute_dtype
from lightrft.kernels.rows import Columns, RowGradient, RowKernels, RowState
from lightrft.kernels.tiling import PITCH, Tile, backward_tile, forward_tile, round_up, spans

FLOAT16_TARGET = 2.0**13


@dataclass(frozen=True)
class Head:
    """How a head is computed. `reduce` joins the row states of ranks, `sum_ranks` adds up their gradients."""

    kernels: RowKernels
    temperature: float = 1.0
    with_entropy: bool = False
    chunk_size: int = 4096
    first_id: int = 0  # of this rank's part of the vocabulary
    reduce: Callable[[RowState], RowState] = lambda state: state
    sum_ranks: Callable[[Tensor], Tensor] = lambda gradient: gradient


class LinearLogprob(torch.autograd.Function):
    """`(hidden [N, D], weight [V, D], bias [V] | None, target [N], head)` -> log-probs and entropy `[N]`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, head: Head
    ) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(hidden.device.type, enabled=False):
            state = head.reduce(_scan(hidden, weight, bias, target, head))
        asked = target != IGNORED
        log_z = state.log_z()
        logprob = torch.where(asked, state.target_logit - log_z, 0)
        entropy = torch.where(asked, state.entropy(), 0) if head.with_entropy else None
        ctx.save_for_backward(hidden, weight, bias, target, log_z, entropy)
        ctx.head = head
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logprob_grad: Tensor | None, entropy_grad: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, log_z, entropy = ctx.saved_tensors
        if logprob_grad is None:
            logprob_grad = torch.zeros_like(log_z)
        asked = target != IGNORED
        active = asked & (logprob_grad != 0)
        if entropy_grad is not None:
            active |= asked & (entropy_grad != 0)
        rows = RowGradient(log_z, logprob_grad, None if entropy_grad is None else entropy, entropy_grad)
        with torch.autocast(hidden.device.type, enabled=False):
            backward = _Backward(ctx.head, weight, bias, ctx.needs_input_grad[:3])
            return *backward.run(hidden, target, rows, active.nonzero().squeeze(1)), None, None


def _scan(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, head: Head) -> RowState:
    """The state of every row over this rank's vocabulary."""
    dtype = compute_dtype(weight.dtype)
    tile = forward_tile(len(hidden), len(weight), head.chunk_size, dtype.itemsize, hidden.is_cuda)
    room = _room(tile, hidden, dtype)
    state = RowState.start(len(hidden), hidden, dtype)
    for rows in spans(len(hidden), tile.rows):
        for part in spans(len(weight), tile.columns):
            logits = _within(room, rows, part)
            products.logits_into(logits, hidden[rows], weight[part])
            columns = _columns(head, target[rows], bias, part)
            head.kernels.scan(logits, columns, state.rows(rows), head.with_entropy)
    return state


def _room(tile: Tile, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(tile.rows * round_up(tile.columns, PITCH), dtype=dtype, device=like.device)


def _within(room: Tensor, rows: slice, columns: slice) -> Tensor:
    """A matrix for these rows and columns at the start of `room`; a row starts where fast accesses may."""
    num_rows, num_columns = rows.stop - rows.start, columns.stop - columns.start
    pitch = round_up(num_columns, PITCH)
    return room[: num_rows * pitch].view(num_rows, pitch)[:, :num_columns]


def _columns(head: Head, target: Tensor, bias: Tensor | None, part: slice) -> Columns:
    return Columns(target, head.first_id + part.start, None if bias is None else bias[part], head.temperature)


class _Backward:
    """The gradients of hidden, weight and bias, a chunk of rows at a time."""

    def __init__(
        self, head: Head, weight: Tensor, bias: Tensor | None, needed: tuple[bool, bool, bool]
    ) -> None:
        self.head, self.weight, self.bias = head, weight, bias
        self.of_hidden, self.of_weight, self.of_bias = needed
        self.dtype = compute_dtype(weight.dtype)
        self.kept_dtype = weight.dtype if products.keeps_16_bits(weight) else self.dtype

    def run(
        self, hidden: Tensor, target: Tensor, rows: RowGradient, active: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`active` are the numbers of the rows that have a gradient, ascending; no other row is looked at."""
        num_columns = len(self.weight)
        self.tile = backward_tile(
            len(active), num_columns, self.head.chunk_size, self.dtype.itemsize, self.kept_dtype.itemsize
        )
        self.scale = self._scale(rows)
        whole = len(active) == len(hidden)
        self._make_room(hidden, whole, once=len(active) <= self.tile.rows)
        for span in spans(len(active), self.tile.rows):
            chosen = span if whole else active[span]
            part = hidden[chosen]
            dlogits = self._dlogits(part, target[chosen], rows.select(chosen), span)
            self._add(dlogits, part)
            if self.dhidden is not None:
                # Rows that were picked out are a copy, which their gradient may overwrite.
                out = self.dhidden[chosen] if whole else part
                products.hidden_gradient(dlogits, self.weight, out, self.scale)
                if isinstance(chosen, Tensor):
                    self.dhidden.index_copy_(0, chosen, part)
            del dlogits  # a view of `kept`: the last one would hold it while the gradient is narrowed
        del self.kept, self.room
        return self._finished()

    def _make_room(self, hidden: Tensor, whole: bool, once: bool) -> None:
        make = torch.empty_like if whole else torch.zeros_like
        self.dhidden = make(hidden) if self.of_hidden else None
        # With all rows in one chunk, the product itself is the weight's gradient.
        self.once = once and self.scale is None
        self.dweight = (
            torch.zeros_like(self.weight, dtype=self.dtype) if self.of_weight and not self.once else None
        )
        self.dbias = None
        if self.bias is not None and self.of_bias:
            self.dbias = torch.zeros_like(self.bias, dtype=self.dtype)
        self.kept = _room(Tile(self.tile.rows, len(self.weight)), hidden, self.kept_dtype)
        narrow = self.kept_dtype != self.dtype
        self.room = _room(self.tile, hidden, self.dtype) if narrow else None

    def _dlogits(self, hidden: Tensor, target: Tensor, rows: RowGradient, span: slice) -> Tensor:
        """The gradient of the logits `[n, V]` of one chunk, times `scale`."""
        if self.scale is not None:
            rows = rows.scaled(self.scale)
        dlogits = _within(self.kept, span, slice(0, len(self.weight)))
        for part in spans(len(self.weight), self.tile.columns):
            out = dlogits[:, part]
            logits = out if self.room is None else _within(self.room, span, part)
            products.logits_into(logits, hidden, self.weight[part])
            self.head.kernels.gradient(logits, _columns(self.head, target, self.bias, part), rows, out)
        return dlogits

    def _add(self, dlogits: Tensor, hidden: Tensor) -> None:
        if self.dbias is not None:
            self.dbias += dlogits.sum(0, dtype=self.dtype)
        if self.of_weight and self.once:
            self.dweight = products.weight_gradient(dlogits, hidden, self.weight)
        elif self.dweight is not None:
            products.add_weight_gradient(self.dweight, dlogits, hidden)

    def _finished(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients in the dtypes of what they belong to."""
        dweight, dbias = self.dweight, self.dbias
        if self.of_weight and dweight is None:  # no row had a gradient; ranks may wait for one all the same
            dweight = torch.zeros_like(self.weight)
        if self.scale is not None:
            dweight = None if dweight is None else dweight.div_(self.scale)
            dbias = None if dbias is None else dbias.div_(self.scale)
        if dweight is not None and dweight.dtype != self.weight.dtype:
            room = self.head.chunk_size * len(self.weight) * self.dtype.itemsize
            roomy = room >= self.weight.numel() * self.weight.itemsize
            narrow = dweight.to if roomy else partial(products.narrow_in_place, dweight)
            dweight = narrow(self.weight.dtype)
        if self.bias is not None and dbias is not None:
            dbias = dbias.to(self.bias.dtype)
        return (None if self.dhidden is None else self.head.sum_ranks(self.dhidden)), dweight, dbias

    def _scale(self, rows: RowGradient) -> Tensor | None:
        """For float16, which holds nothing below 6e-8: a power of 2 that takes the gradients near 1e4."""
        if self.kept_dtype != torch.float16:
            return None
        largest = rows.logprob_grad.abs().max()
        if rows.entropy is not None and rows.entropy_grad is not None:
            # |p (log p + H)| is at most 1 / e + H
            largest = largest + (rows.entropy_grad.abs() * (rows.entropy + 1)).max()
        largest = (largest / self.head.temperature).clamp(min=torch.finfo(torch.float32).tiny)
        return (FLOAT16_TARGET / largest).log2().floor().clamp(max=100).exp2()
