"""How much memory the process holds, on the host and on its GPU. Bytes throughout."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_PROC_STATUS = Path("/proc/self/status")


def memory_report() -> dict[str, int]:
    """`host/rss`, `host/peak_rss`, and with a GPU `cuda/allocated`, `cuda/reserved`, `cuda/peak_allocated`,
    `cuda/used`, `cuda/total`.

    `cuda/used` is what the driver counts, other processes included. It alone tells the truth while an engine
    in this process sleeps: torch goes on counting the pool that the engine has given back.
    """
    out = {"host/rss": _rss(), "host/peak_rss": _peak_rss()}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        out |= {
            "cuda/allocated": torch.cuda.memory_allocated(),
            "cuda/reserved": torch.cuda.memory_reserved(),
            "cuda/peak_allocated": torch.cuda.max_memory_allocated(),
            "cuda/used": total - free,
            "cuda/total": total,
        }
    return out


@contextmanager
def phase_peaks(phase: str, into: dict[str, float]) -> Iterator[None]:
    """Write `memory/<phase>/host_rss` and, with a GPU, `memory/<phase>/cuda_peak` of the block to `into`.

    The first is resident at the block's end (the kernel's peak covers the whole life of the process), the
    second the largest that torch had allocated within. Blocks must not be nested: there is one peak to reset.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        into[f"memory/{phase}/host_rss"] = float(_rss())
        if on_gpu:
            into[f"memory/{phase}/cuda_peak"] = float(torch.cuda.max_memory_allocated())


def _rss() -> int:
    if not _PROC_STATUS.exists():
        return _peak_rss()
    for line in _PROC_STATUS.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return _peak_rss()


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
