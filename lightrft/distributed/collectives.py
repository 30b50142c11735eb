"""The few collectives that the trainer uses. Each is the identity where there is one process.

Every rank must call them in the same order with the same shapes; a decision that depends on data (skip, stop,
resample) is made from their result, never from a local value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
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


def all_names(names: Iterable[str], device: torch.device | str = "cpu") -> list[str]:
    """The names that any rank has, sorted. They travel only where the ranks differ (a hash tells)."""
    own = sorted(names)
    if world_size() == 1:
        return own
    digest = hashlib.blake2b("\n".join(own).encode(), digest_size=6).digest()
    number = float(int.from_bytes(digest, "big"))  # 48 bits: exact in float64
    extremes = reduce_max(torch.tensor([number, -number], dtype=torch.float64, device=device))
    if extremes[0] == -extremes[1]:
        return own
    return sorted({name for gathered in gather_objects(own) for name in gathered})


def reduce_named(
    sums: dict[str, float], maxima: dict[str, float], device: torch.device | str = "cpu"
) -> tuple[dict[str, float], dict[str, float]]:
    """Named sums and named maxima over ranks, in float64. A rank that lacks a name adds nothing to it."""
    if world_size() == 1:
        return dict(sums), dict(maxima)
    tagged = all_names([f"+{name}" for name in sums] + [f">{name}" for name in maxima], device)
    sum_names = [name[1:] for name in tagged if name[0] == "+"]
    max_names = [name[1:] for name in tagged if name[0] == ">"]

    def reduced(names: list[str], values: dict[str, float], missing: float, op: Any) -> dict[str, float]:
        row = torch.tensor([values.get(n, missing) for n in names], dtype=torch.float64, device=device)
        return dict(zip(names, op(row).tolist(), strict=True)) if names else {}

    return reduced(sum_names, sums, 0.0, reduce_sum), reduced(max_names, maxima, -math.inf, reduce_max)


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
