"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Timers:
    """Seconds by phase, of the last step and of the whole run.

    A phase inside another counts for both, and once for the step; what lies in no phase is overhead. With
    `synchronize` the clock waits for the GPU at the edges of a phase, which makes the split exact and the
    step a little slower; without it a phase can end before its kernels do.
    """

    def __init__(self, synchronize: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self._synchronize = synchronize and torch.cuda.is_available()
        self._clock = clock
        self._open: list[str] = []
        self._totals: dict[str, float] = {}
        self._in_step = False
        self._step: dict[str, float] = {}
        self._covered = 0.0  # seconds of the step that lie in some phase
        self._step_seconds = 0.0
        self._covered_total = 0.0
        self._step_total = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase. It is counted when it ends with an exception, too."""
        outermost, again = not self._open, phase in self._open
        began = self._now()
        self._open.append(phase)
        try:
            yield
        finally:
            self._open.pop()
            seconds = self._now() - began
            if not again:
                self._totals[phase] = self._totals.get(phase, 0.0) + seconds
                if self._in_step:
                    self._step[phase] = self._step.get(phase, 0.0) + seconds
            if outermost and self._in_step:
                self._covered += seconds

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one training step; the phases within it are the step's."""
        self._in_step, self._step, self._covered = True, {}, 0.0
        began = self._now()
        try:
            yield
        finally:
            self._in_step = False
            self._step_seconds = self._now() - began
            self._step_total += self._step_seconds
            self._covered_total += self._covered

    def last_step(self) -> dict[str, float]:
        """`time/<phase>` and `time/step` in seconds, and `time/overhead_share` of the last step."""
        out = {f"time/{phase}": seconds for phase, seconds in self._step.items()}
        share = _share(self._step_seconds, self._covered)
        return out | {"time/step": self._step_seconds, "time/overhead_share": share}

    def totals(self) -> dict[str, float]:
        """Seconds of each phase since the start, inside steps or not."""
        return dict(self._totals)

    def overhead_share(self) -> float:
        """Share of the wall time of all steps so far that lies in no phase; 0 before the first step."""
        return _share(self._step_total, self._covered_total)

    def _now(self) -> float:
        if self._synchronize:
            torch.cuda.synchronize()
        return self._clock()


def _share(step: float, covered: float) -> float:
    return max(0.0, 1.0 - covered / step) if step > 0 else 0.0
