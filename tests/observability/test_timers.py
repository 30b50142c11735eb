"""Timers on a clock that the test moves by hand."""

from __future__ import annotations

import pytest

from lightrft.observability.timers import Timers


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timers(clock: Clock) -> Timers:
    return Timers(clock=clock)


def test_a_step_is_split_into_phases_and_overhead(timers: Timers, clock: Clock) -> None:
    with timers.step():
        with timers("generate"):
            clock.sleep(6.0)
        clock.sleep(0.5)
        with timers("update"):
            clock.sleep(3.0)
        with timers("update"):  # a phase may come in pieces
            clock.sleep(0.5)
    expected = {"time/generate": 6.0, "time/update": 3.5, "time/step": 10.0, "time/overhead_share": 0.05}
    assert timers.last_step() == pytest.approx(expected)


def test_a_nested_phase_counts_for_both_but_once_for_the_step(timers: Timers, clock: Clock) -> None:
    with timers.step():
        with timers("update"):
            clock.sleep(1.0)
            with timers("sync"), timers("update"):
                clock.sleep(2.0)
        clock.sleep(1.0)
    last = timers.last_step()
    assert (last["time/update"], last["time/sync"]) == (3.0, 2.0)
    assert last["time/overhead_share"] == pytest.approx(0.25)


def test_totals_go_on_and_the_step_starts_anew(timers: Timers, clock: Clock) -> None:
    for seconds in (1.0, 3.0):
        with timers.step(), timers("generate"):
            clock.sleep(seconds)
    with timers("save"):  # between steps: in the totals, in no step
        clock.sleep(5.0)
    assert timers.last_step()["time/generate"] == 3.0
    assert "time/save" not in timers.last_step()
    assert timers.totals() == {"generate": 4.0, "save": 5.0}
    assert timers.overhead_share() == 0.0


def test_the_share_of_the_run_weighs_steps_by_their_length(timers: Timers, clock: Clock) -> None:
    assert timers.overhead_share() == 0.0
    for inside, outside in ((1.0, 1.0), (8.0, 0.0)):
        with timers.step():
            with timers("generate"):
                clock.sleep(inside)
            clock.sleep(outside)
    assert timers.overhead_share() == pytest.approx(0.1)


def test_a_phase_that_raises_is_counted_and_closed(timers: Timers, clock: Clock) -> None:
    def broken_step() -> None:
        with timers.step(), timers("reward"):
            clock.sleep(2.0)
            raise RuntimeError("the reward failed")

    with pytest.raises(RuntimeError, match="the reward failed"):
        broken_step()
    assert timers.last_step() == {"time/reward": 2.0, "time/step": 2.0, "time/overhead_share": 0.0}
    with timers.step():  # the next step starts with no phase open
        clock.sleep(1.0)
    assert timers.last_step()["time/overhead_share"] == 1.0


def test_the_clock_waits_for_no_gpu_where_there_is_none() -> None:
    timers = Timers(synchronize=True)
    with timers.step(), timers("generate"):
        pass
    assert 0.0 <= timers.last_step()["time/step"] < 5.0
