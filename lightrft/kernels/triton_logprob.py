"""The row kernels in Triton: each logit is read once, the gradient written once. No atomics."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lightrft.kernels.rows import Columns, RowGradient, RowState

SCAN_COLUMNS = 4096  # of a row, read at a time
SCAN_WARPS = 8
GRADIENT_COLUMNS = 1024
GRADIENT_WARPS = 4


@triton.jit
def scan_kernel(
    tile,
    target,
    bias,
    maximum,
    total,
    weighted,
    target_logit,
    num_columns,
    pitch,
    first,
    inverse_temperature,
    HAS_BIAS: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program adds one row of a tile to the row's state; see rows.py for what the names mean."""
    row = tl.program_id(0)
    start = tile + row.to(tl.int64) * pitch
    lanes = tl.arange(0, BLOCK)
    # Each lane has a state of its own; they are joined at the end, and with that of earlier tiles.
    m = tl.full((BLOCK,), -3.4e38, tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    w = tl.zeros((BLOCK,), tl.float32)
    for column in range(0, num_columns, BLOCK):
        at = column + lanes
        inside = at < num_columns
        x = tl.load(start + at, mask=inside, other=-float("inf"))
        if HAS_BIAS:
            x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        x *= inverse_temperature
        higher = tl.maximum(m, x)
        moved = m - higher
        scale = tl.exp(moved)
        d = x - higher
        p = tl.exp(d)
        if WITH_ENTROPY:
            w = scale * (w + s * moved) + tl.where(p == 0.0, 0.0, p * d)
        s = s * scale + p
        m = higher
    row_m, row_s = tl.load(maximum + row), tl.load(total + row)
    joint = tl.maximum(tl.max(m, 0), row_m)
    moved, row_moved = m - joint, row_m - joint
    scale, row_scale = tl.exp(moved), tl.exp(row_moved)
    if WITH_ENTROPY:
        parts = tl.where(s == 0.0, 0.0, scale * (w + s * moved))
        row_part = tl.where(row_s == 0.0, 0.0, row_scale * (tl.load(weighted + row) + row_s * row_moved))
        tl.store(weighted + row, row_part + tl.sum(parts, 0))
    tl.store(total + row, row_s * row_scale + tl.sum(s * scale, 0))
    tl.store(maximum + row, joint)
    y = tl.load(target + row) - first
    if (y >= 0) & (y < num_columns):
        x = tl.load(start + y)
        if HAS_BIAS:
            x += tl.load(bias + y).to(tl.float32)
        tl.store(target_logit + row, x * inverse_temperature)


@triton.jit
def gradient_kernel(
    tile,
    out,
    target,
    bias,
    log_z,
    logprob_grad,
    entropy,
    entropy_grad,
    num_columns,
    pitch,
    out_pitch,
    first,
    inverse_temperature,
    HAS_BIAS: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program writes the gradient of `BLOCK` logits of one row. `out` may be `tile`."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_columns
    x = tl.load(tile + row.to(tl.int64) * pitch + at, mask=inside, other=0.0)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    logp = x * inverse_temperature - tl.load(log_z + row)
    p = tl.exp(logp)
    grad = tl.load(logprob_grad + row)
    slope = p * grad
    if WITH_ENTROPY:
        change = tl.load(entropy_grad + row) * (logp + tl.load(entropy + row))
        slope += tl.where(p == 0.0, 0.0, p * change)
    y = tl.load(target + row) - first
    gradient = (tl.where(at == y, grad, 0.0) - slope) * inverse_temperature
    tl.store(out + row.to(tl.int64) * out_pitch + at, gradient.to(out.dtype.element_ty), mask=inside)


class TritonRows:
    """`RowKernels` on a GPU, for float32 logits."""

    def scan(self, tile: Tensor, columns: Columns, state: RowState, with_entropy: bool) -> None:
        scan_kernel[(len(tile),)](
            tile,
            columns.target,
            columns.bias,
            state.maximum,
            state.total,
            state.weighted,
            state.target_logit,
            tile.shape[1],
            tile.stride(0),
            columns.first,
            1 / columns.temperature,
            HAS_BIAS=columns.bias is not None,
            WITH_ENTROPY=with_entropy,
            BLOCK=min(SCAN_COLUMNS, triton.next_power_of_2(tile.shape[1])),
            num_warps=SCAN_WARPS,
        )

    def gradient(self, tile: Tensor, columns: Columns, rows: RowGradient, out: Tensor) -> None:
        block = min(GRADIENT_COLUMNS, triton.next_power_of_2(tile.shape[1]))
        gradient_kernel[(len(tile), triton.cdiv(tile.shape[1], block))](
            tile,
            out,
            columns.target,
            columns.bias,
            rows.log_z,
            rows.logprob_grad,
            rows.entropy,
            rows.entropy_grad,
            tile.shape[1],
            tile.stride(0),
            out.stride(0),
            columns.first,
            1 / columns.temperature,
            HAS_BIAS=columns.bias is not None,
            WITH_ENTROPY=rows.entropy_grad is not None,
            BLOCK=block,
            num_warps=GRADIENT_WARPS,
        )
