"""The three matrix products of a linear head, accumulated in float32 and rounded at most once.

On a GPU they run on the tensor cores in the operands' own dtype, with float32 results where those go on being
computed with. On a CPU, operands of 16 bits are widened a strip at a time, as its products would round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightrft.kernels.tiling import spans

STRIP_ROWS = 4096  # of the weight, widened or multiplied at a time where it is not done at once


def keeps_16_bits(weight: Tensor) -> bool:
    """Whether products take 16-bit operands as they are; the logits' gradient is then rounded to 16 bits."""
    return weight.is_cuda and weight.dtype in {torch.bfloat16, torch.float16}


def logits_into(out: Tensor, hidden: Tensor, weight: Tensor) -> None:
    """`out [n, v]` (float32, or float64) = `hidden [n, D]` x `weight [v, D]` transposed, not rounded."""
    if keeps_16_bits(weight):
        torch.mm(hidden, weight.t(), out_dtype=out.dtype, out=out)
        return
    hidden = hidden.to(out.dtype)
    for strip in spans(len(weight), len(weight) if weight.dtype == out.dtype else STRIP_ROWS):
        torch.mm(hidden, weight[strip].to(out.dtype).t(), out=out[:, strip])


def hidden_gradient(dlogits: Tensor, weight: Tensor, out: Tensor, scale: Tensor | None) -> None:
    """`out [n, D]` = `dlogits [n, V]` x `weight [V, D]` / `scale`, rounded to the dtype of `out` once."""
    if keeps_16_bits(weight):
        if scale is None:
            torch.mm(dlogits, weight, out=out)
        else:
            out.copy_(torch.mm(dlogits, weight, out_dtype=torch.float32) / scale)
        return
    if weight.dtype == dlogits.dtype:
        torch.mm(dlogits, weight, out=out)
        return
    total = dlogits.new_zeros(out.shape)
    for strip in spans(len(weight), STRIP_ROWS):
        total.addmm_(dlogits[:, strip], weight[strip].to(dlogits.dtype))
    out.copy_(total)


def add_weight_gradient(total: Tensor, dlogits: Tensor, hidden: Tensor) -> None:
    """`total [V, D]` (float32, or float64) += `dlogits [n, V]` transposed x `hidden [n, D]`, in place."""
    if hidden.dtype == total.dtype or not hidden.is_cuda:
        total.addmm_(dlogits.t(), hidden.to(total.dtype))
    elif _adds_in_place(total):
        torch.addmm(total, dlogits.t(), hidden, out_dtype=total.dtype, out=total)
    else:
        for strip in spans(len(total), STRIP_ROWS):
            total[strip] += torch.mm(dlogits[:, strip].t(), hidden, out_dtype=total.dtype)


def weight_gradient(dlogits: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """`dlogits [n, V]` transposed x `hidden [n, D]` in the dtype of `weight`, rounded once."""
    if hidden.is_cuda:
        return torch.mm(dlogits.t(), hidden)
    return torch.mm(dlogits.t(), hidden.to(dlogits.dtype)).to(weight.dtype)


_in_place: dict[torch.device, bool] = {}


def _adds_in_place(total: Tensor) -> bool:
    """Does this torch add a product of 16-bit operands to a float32 matrix? Before 2.10 it does not."""
    if total.device not in _in_place:
        small = torch.ones(16, 16, dtype=torch.bfloat16, device=total.device)
        start = torch.ones(16, 16, device=total.device)
        try:
            torch.addmm(start, small, small, out_dtype=torch.float32, out=start)
            _in_place[total.device] = bool((start == 17).all())
        except RuntimeError:
            _in_place[total.device] = False
    return _in_place[total.device]


def narrow_in_place(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """`wide`, contiguous float32, in a 16-bit `dtype` within its own memory: half of it is left over.

    Element i moves from byte 4 i to byte 2 i. From element a to 2 a, what is written ends before what is read
    begins, so each doubling is one copy; only the first few elements take a detour.
    """
    source, size = wide.view(-1), wide.numel()
    narrow = source.view(dtype)[:size]
    done = min(size, 1 << 16)
    narrow[:done] = source[:done].to(dtype)
    while done < size:
        end = min(2 * done, size)
        narrow[done:end] = source[done:end]
        done = end
    return narrow.view(wide.shape)
