"""The few collectives that the trainer uses. Each is the identity where there is one process.

Every rank must call them in the same order with the same shapes; a decision that depends on data (skip, stop,
resample) is made from their result, never from a local value.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _reduced(x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
    if world_size() == 1:
        return x
    out = x.clone()
    dist.all_reduce(out, op=op)
    return out


def reduce_sum(x: Tensor) -> Tensor:
    """Sum of `x` over ranks, on every rank."""
    return _reduced(x, dist.ReduceOp.SUM)


def reduce_max(x: Tensor) -> Tensor:
    """Largest `x` over ranks, elementwise, on every rank."""
    return _reduced(x, dist.ReduceOp.MAX)


def reduce_sums(values: dict[str, float], device: torch.device | str = "cpu") -> dict[str, float]:
    """Each value summed over ranks, in one call and in float64. All ranks must give the same keys."""
    if world_size() == 1:
        return dict(values)
    names = sorted(values)
    total = reduce_sum(torch.tensor([values[n] for n in names], dtype=torch.float64, device=device))
    return dict(zip(names, total.tolist(), strict=True))


def reduce_maxima(values: dict[str, float], device: torch.device | str = "cpu") -> dict[str, float]:
    """Each value's maximum over ranks, in one call. All ranks must give the same keys."""
    if world_size() == 1:
        return dict(values)
    names = sorted(values)
    largest = reduce_max(torch.tensor([values[n] for n in names], dtype=torch.float64, device=device))
    return dict(zip(names, largest.tolist(), strict=True))


def all_ranks(flag: bool, device: torch.device | str = "cpu") -> bool:
    """True where `flag` holds on every rank."""
    return not any_rank(not flag, device)


def any_rank(flag: bool, device: torch.device | str = "cpu") -> bool:
    """True where `flag` holds on at least one rank."""
    if world_size() == 1:
        return flag
    return bool(reduce_max(torch.tensor([float(flag)], device=device)).item())


def gather_objects(value: Any) -> list[Any]:
    """Every rank's picklable `value`, by rank, on every rank. For small things: it travels pickled."""
    if world_size() == 1:
        return [value]
    out: list[Any] = [None] * world_size()
    dist.all_gather_object(out, value)
    return out


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()
