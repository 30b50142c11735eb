"""The lines of a run, on a terminal and in a log file, by a clock that the test moves."""

from __future__ import annotations

import io
import math

import pytest

from lightrft.observability.console import Console, duration, step_line

METRICS = {
    "rollout/reward": 0.412,
    "rollout/pass_rate": 0.38,
    "policy/kl": 0.0012,
    "policy/clip_fraction_high": 0.02,
    "policy/clip_fraction_low": 0.01,
    "rollout/response_length": 5.1,
    "rollout/truncated_share": 0.0,
    "rollout/zero_spread_share": 0.25,
    "rollout/logprob_gap_mean": 3e-06,
    "policy/grad_norm": 0.81,
    "policy/lr": 4e-4,
    "time/step": 0.21,
    "time/generate": 0.09,
    "time/experience": 0.04,
    "time/update": 0.06,
    "time/sync": 0.001,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_is_one_line_of_metrics() -> None:
    assert step_line(12, 400, METRICS) == (
        "step  12/400  reward  0.412  pass .38  kl  0.0012  clip .03  len    5.1  trunc   0%  "
        "zero-spread  25%  gap 3e-06  grad  0.81  lr 4.0e-04  .21 s  "
        "(gen .09 exp .04 upd .06 sync .00)  left 1m21s"
    )


def test_columns_stay_in_place() -> None:
    other = METRICS | {"rollout/reward": -0.5, "rollout/pass_rate": 1.0, "rollout/response_length": 1024.0}
    first, second = step_line(1, 400, METRICS), step_line(399, 400, other)
    assert [first.index(w) for w in ("pass", "kl", "clip", "len", "trunc", "gap", "lr")] == [
        second.index(w) for w in ("pass", "kl", "clip", "len", "trunc", "gap", "lr")
    ]


def test_what_a_run_has_not_is_left_out_and_what_is_no_number_is_said() -> None:
    line = step_line(1, 2, {"rollout/reward": math.nan})
    assert line == "step 1/2  reward nan"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-1, "0s"), (3.2, "3s"), (59.6, "1m00s"), (72, "1m12s"), (4000, "1h06m"), (90000, "25h00m")],
)
def test_durations(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_the_time_left_counts_what_lies_between_steps() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(stream=out, clock=clock)
    console.step(1, 11, {"time/step": 1.0})
    clock.now += 4.0  # one second of step, three of evaluation
    console.step(2, 11, {"time/step": 1.0})
    first, second = out.getvalue().splitlines()
    assert first.endswith("left 10s")
    assert second.endswith("left 36s")


def test_a_log_file_hears_of_long_phases_only() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(stream=out, clock=clock)
    for seconds in (1.0, 30.0, 1.0, 1.0):
        with console.phase("generate"):
            clock.now += seconds
    # The first time nobody knows; the third follows a long one; the fourth a short one.
    assert out.getvalue() == "  generate\n  generate  about 30s\n"


def test_progress_in_a_log_file_is_throttled_and_carries_rate_and_time_left() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(stream=out, clock=clock)
    with console.phase("generate", total=256) as progress:
        for _ in range(8):
            clock.now += 4.0
            progress.advance(32)
    assert out.getvalue().splitlines() == [
        "  generate",
        "  generate 96/256 samples  8/s  left 20s",
        "  generate 192/256 samples  8/s  left 8s",
    ]


def test_a_terminal_redraws_one_line_and_clears_it() -> None:
    out, clock = Terminal(), Clock()
    console = Console(stream=out, clock=clock)
    with console.phase("update", total=4, unit="micro-batches") as progress:
        clock.now += 1.0
        progress.advance(2)
        progress.advance(1)  # at the same moment: not drawn
    console.text("step 1")
    live = "update 2/4 micro-batches  2/s  left 1s"
    assert out.getvalue() == f"\rupdate\r{live}\r{' ' * len(live)}\rstep 1\n"


def test_a_live_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    out = Terminal()
    Console(stream=out).show("a line that is longer than that", now=True)
    assert out.getvalue() == "\ra line th"


def test_other_ranks_are_silent() -> None:
    out = Terminal()
    console = Console(rank=1, stream=out)
    with console.phase("generate", total=2) as progress:
        progress.advance()
    console.step(1, 2, METRICS)
    console.text("done")
    assert out.getvalue() == ""
