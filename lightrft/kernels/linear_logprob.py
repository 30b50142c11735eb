"""`linear_logprob`: log-probs of target tokens under a linear head, without its logits in memory."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from lightrft.kernels.chunked import Head, LinearLogprob
from lightrft.kernels.reference import IGNORED, eager_logprob
from lightrft.kernels.rows import RowKernels, TorchRows

Impl = Literal["auto", "eager", "chunked", "triton"]


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_size: int = 4096,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Log-probs `[N]` of `target [N]` under softmax((`hidden [N, D]` `weight [V, D]`ᵀ + `bias [V]`) / T).

    The second value is the entropy `[N]` of each row's distribution in nats, `with_entropy`, else None. Both
    are float32 (float64 for float64 inputs) and differentiable in hidden, weight and bias. Rows whose target
    is -100 give 0 and have no gradient, whatever they hold.

    Beside inputs and gradients the memory is bounded by `chunk_size` x V x 4 bytes + 64 MiB, however many
    rows there are (and a copy of a chunk's rows of `hidden` where the gradient leaves rows out). Logits are
    float32; where products run in 16 bits, on a GPU, the logits' gradient is rounded to the inputs' dtype.
    Several chunks sum the weight's gradient in float32, which is narrowed in its place where a copy would
    break the bound: it then keeps twice its size in memory. Rows whose gradient is 0 cost the backward pass
    nothing, a frozen weight has no gradient. Equal inputs give equal bits.

    `impl`: `eager` keeps all logits (the oracle), `chunked` runs on any device, `triton` on a GPU (on the CPU
    with TRITON_INTERPRET=1), `auto` is `triton` on a GPU and `chunked` elsewhere: on a CPU it takes the eager
    one's time and, even in one chunk, less memory.

    Raises:
        ValueError: shapes, dtypes, temperature, chunk_size or impl do not fit; a target outside of the
            vocabulary (on a GPU, where looking would stop the queue, its log-prob is -inf).
    """
    _check(hidden, weight, target, bias)
    _check_options(temperature, chunk_size, impl)
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    if impl == "eager":
        return eager_logprob(hidden, weight, target, bias, temperature, with_entropy)
    head = Head(row_kernels(impl, hidden), float(temperature), with_entropy, chunk_size)
    logprob, entropy = LinearLogprob.apply(hidden.contiguous(), weight, bias, target, head)
    return logprob, entropy


def row_kernels(impl: Impl, hidden: Tensor) -> RowKernels:
    """The kernels that `impl` names; float64 is torch's, as an oracle's dtype."""
    wants_triton = impl == "triton" or (impl == "auto" and hidden.is_cuda and find_spec("triton"))
    if wants_triton and hidden.dtype != torch.float64:
        if find_spec("triton") is None:
            raise ValueError("impl ('triton') needs the package triton, and it is not installed: use 'auto'")
        from lightrft.kernels.triton_logprob import TritonRows

        return TritonRows()
    return TorchRows()


def _check(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}, target {list(target.shape)}"
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"{shapes}: must be [N, D], [V, D] and [N]")
    if target.shape != hidden.shape[:1] or target.dtype != torch.int64:
        raise ValueError(f"{shapes}: target must be int64 [N], and is {target.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias {list(bias.shape)} must be [V], as weight is {list(weight.shape)}")
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"hidden ({hidden.dtype}) and weight ({weight.dtype}) must be of a float dtype")
    if len({t.device for t in (hidden, weight, target)}) > 1:
        raise ValueError(f"hidden on {hidden.device}, weight on {weight.device}, target on {target.device}")
    if hidden.is_cuda or not len(target):
        return
    outside = (target != IGNORED) & ((target < 0) | (target >= len(weight)))
    if outside.any():
        raise ValueError(
            f"target {int(target[outside][0])} is no token: the vocabulary has {len(weight)} "
            f"(0 to {len(weight) - 1}), and {IGNORED} asks for nothing"
        )


def _check_options(temperature: float, chunk_size: int, impl: str) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature ({temperature}) must be above 0")
    if chunk_size < 1:
        raise ValueError(f"chunk_size ({chunk_size}) must be at least 1")
    if impl not in get_args(Impl):
        raise ValueError(f"impl ({impl!r}) must be one of {', '.join(get_args(Impl))}")
