"""What a run says while it goes: the phase it is in, and one line of metrics a step. Rank 0 only."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

REDRAW_SECONDS = 0.2  # of the live line, on a terminal
PLAIN_SECONDS = 10.0  # between progress lines in a log file; a phase shorter than this is silent there
SMOOTHING = 0.1  # weight of the newest step in the estimate of the time left


def _fraction(value: float) -> str:
    """`.38`, `1.0`: three characters for a share."""
    return f"{value:.2f}"[1:] if 0 <= value < 0.995 else f"{value:.1f}"


def _seconds(value: float) -> str:
    return _fraction(value) if value < 0.995 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# Label, metrics that are added up, format. A metric that a run does not have leaves no gap behind.
_COLUMNS: tuple[tuple[str, tuple[str, ...], Callable[[float], str]], ...] = (
    ("reward", ("rollout/reward",), lambda v: f"{v:6.3f}"),
    ("pass", ("rollout/pass_rate",), _fraction),
    ("kl", ("policy/kl",), lambda v: f"{v:7.4f}"),
    ("clip", ("policy/clip_fraction_high", "policy/clip_fraction_low"), _fraction),
    ("len", ("rollout/response_length",), lambda v: f"{v:6.1f}"),
    ("trunc", ("rollout/truncated_share",), lambda v: f"{v:4.0%}"),
    ("zero-spread", ("rollout/zero_spread_share",), lambda v: f"{v:4.0%}"),
    ("gap", ("rollout/logprob_gap_mean",), lambda v: f"{v:.0e}"),
    ("entropy", ("policy/entropy",), lambda v: f"{v:5.2f}"),
    ("grad", ("policy/grad_norm",), lambda v: f"{v:5.2f}"),
    ("lr", ("policy/lr",), lambda v: f"{v:.1e}"),
)
_PHASES = (
    ("gen", "time/generate"),
    ("rew", "time/reward"),
    ("exp", "time/experience"),
    ("upd", "time/update"),
    ("sync", "time/sync"),
)


def step_line(step: int, total: int, metrics: Mapping[str, float], seconds_left: float | None = None) -> str:
    """One step on one line, in columns that stay in place from step to step.

    Without `seconds_left` the time left is that of this step times the steps to come.
    """
    width = len(str(total))
    parts = [f"step {step:{width}d}/{total}"]
    for label, names, written in _COLUMNS:
        values = [metrics[name] for name in names if name in metrics]
        if values:
            parts.append(f"{label} {'nan' if math.isnan(sum(values)) else written(sum(values))}")
    seconds = metrics.get("time/step")
    if seconds is not None:
        phases = " ".join(f"{label} {_seconds(metrics[n])}" for label, n in _PHASES if n in metrics)
        parts.append(f"{_seconds(seconds)} s" + (f"  ({phases})" if phases else ""))
        seconds_left = seconds * (total - step) if seconds_left is None else seconds_left
    if seconds_left is not None:
        parts.append(f"left {duration(seconds_left)}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`72` -> `1m12s`, `4000` -> `1h06m`, `3.2` -> `3s`."""
    whole = round(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}h{rest // 60:02d}m"
    return f"{rest // 60}m{rest % 60:02d}s" if rest >= 60 else f"{rest}s"


class ProgressLine:
    """The progress of one phase: count, rate, time left. Made by `Console.phase`."""

    def __init__(self, console: Console, name: str, total: int | None, unit: str) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = console.clock()

    def advance(self, count: int = 1) -> None:
        """Another `count` units are done."""
        self._done += count
        self._console.show(self.line())

    def reach(self, done: int, total: int) -> None:
        """`done` of `total` units are done, this time round: a smaller number than before starts again."""
        self._done, self._total = done, total
        self._console.show(self.line())

    def line(self) -> str:
        """`generate 96/256 samples  31.5/s  left 5s`; without a count, the time it took last time."""
        seconds = self._console.clock() - self._began
        text = self._name
        if self._done:
            rate = self._done / max(seconds, 1e-9)
            of = f"/{self._total}" if self._total is not None else ""
            text += f" {self._done}{of} {self._unit}  {rate:.3g}/s"
            if self._total is not None:
                text += f"  left {duration((self._total - self._done) / rate)}"
            return text
        expected = self._console.last_seconds.get(self._name)
        return text + (f"  about {duration(expected)}" if expected is not None and expected >= 1 else "")


class Console:
    """Prints to `stream` (standard output): a live line on a terminal, throttled plain lines elsewhere."""

    def __init__(
        self,
        rank: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.last_seconds: dict[str, float] = {}  # how long each phase took when it last ran
        self._silent = rank != 0
        self._stream = stream if stream is not None else sys.stdout
        self._live = self._stream.isatty()
        self._drawn = 0  # characters of the live line that stand on the terminal
        self._shown_at = -math.inf
        self._stepped_at: float | None = None
        self._step_seconds: float | None = None

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "samples") -> Iterator[ProgressLine]:
        """Say that `name` runs. A log file hears of it only where it will take long, or never ran before."""
        began = self.clock()
        progress = ProgressLine(self, name, total, unit)
        if self._live or self.last_seconds.get(name, math.inf) >= PLAIN_SECONDS:
            self.show(progress.line(), now=True)
        try:
            yield progress
        finally:
            self._clear()
            self.last_seconds[name] = self.clock() - began

    def show(self, line: str, now: bool = False) -> None:
        """Show the progress of a phase, unless the last one was shown a moment ago."""
        gap = REDRAW_SECONDS if self._live else PLAIN_SECONDS
        if self._silent or (not now and self.clock() - self._shown_at < gap):
            return
        self._shown_at = self.clock()
        if self._live:
            line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line cannot be redrawn
            self._write("\r" + line.ljust(self._drawn))
            self._drawn = len(line)
        else:
            self._write(f"  {line}\n")

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a finished step. The time left counts what lies between steps, too."""
        now = self.clock()
        if self._stepped_at is not None:
            took = now - self._stepped_at
            old = self._step_seconds
            self._step_seconds = took if old is None else (1 - SMOOTHING) * old + SMOOTHING * took
        self._stepped_at = now
        left = None if self._step_seconds is None else self._step_seconds * (total - step)
        self.text(step_line(step, total, metrics, left))

    def text(self, text: str) -> None:
        """Print `text` on lines of its own."""
        if self._silent:
            return
        self._clear()
        self._write(f"{text}\n")

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
