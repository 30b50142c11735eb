"""A hung, crashed or raising grader costs its own sample: order and all other scores stay."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lightrft.errors import RewardError
from lightrft.rewards import pool as pool_module
from lightrft.rewards.pool import GraderPool, PoolOptions, default_workers

GRADER = """
import ctypes, os, signal, time

def score(response, references):
    if response == "sleep":
        time.sleep(600)
    if response == "stubborn":            # catches the alarm, as a broad handler in a library does
        while True:
            try:
                time.sleep(600)
            except BaseException:
                continue
    if response == "native":              # never returns to the interpreter, and keeps its lock
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        ctypes.pythonapi.sleep(600)
    if response == "exit":
        os._exit(7)
    if response == "segfault":
        ctypes.string_at(0)
    if response == "raise":
        raise ValueError("no such answer")
    if response == "text":
        return "good"
    if response == "dict":
        return {"reward": 0.5, "style": 1}
    if response == "none":
        return None
    if response == "nan":
        return float("nan")
    if response == "print":
        print("noise on standard output", flush=True)
    if response == "pid":
        return os.getpid()
    return float(response in references)
"""


@pytest.fixture
def make_pool(user_file, monkeypatch):
    monkeypatch.setattr(pool_module, "GRACE", 0.3)
    pools = []

    def make(timeout=0.7, workers=2):
        target = f"{user_file(GRADER)}:score"
        pools.append(GraderPool([target], PoolOptions(timeout, workers)))
        return lambda texts: pools[-1].grade(target, [(t, ["yes"]) for t in texts]), pools[-1]

    yield make
    for made in pools:
        made.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_scores_keep_their_order_over_several_workers(make_pool):
    grade, _ = make_pool()
    scores = grade(["yes", "no"] * 100)
    assert [s.value for s in scores] == [1.0, 0.0] * 100
    assert {s.status for s in scores} == {"ok"}
    assert grade([]) == []


@pytest.mark.parametrize(
    ("bad", "status", "restarts"),
    [
        ("sleep", "timeout", 0),
        ("stubborn", "timeout", 1),
        ("native", "timeout", 1),
        ("exit", "error", 1),
        ("segfault", "error", 1),
        ("raise", "error", 0),
        ("text", "error", 0),
        ("none", "error", 0),
        ("nan", "error", 0),
    ],
)
def test_what_goes_wrong_costs_its_own_sample(make_pool, bad, status, restarts):
    grade, pool = make_pool()
    scores = grade(["yes", bad, "no", "yes"])
    assert [s.value for s in scores] == [1.0, None, 0.0, 1.0]
    assert [s.status for s in scores] == ["ok", status, "ok", "ok"]
    assert pool.restarts == restarts
    assert [s.value for s in grade(["no", "yes"])] == [0.0, 1.0]


def test_parts_come_back_and_prints_do_not_disturb_them(make_pool):
    grade, _ = make_pool()
    scores = grade(["dict", "print", "yes"])
    assert [(s.value, s.parts) for s in scores] == [(0.5, {"style": 1.0}), (0.0, {}), (1.0, {})]


def test_it_works_on_any_thread(make_pool):
    grade, _ = make_pool()
    results = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: grade(["yes", "sleep", "no"])}))
        for i in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[s.value for s in results[i]] for i in (0, 1)] == [[1.0, None, 0.0]] * 2


def test_a_reason_is_logged_once(make_pool, caplog):
    grade, _ = make_pool()
    grade(["yes", "raise", "raise"])
    grade(["raise", "yes"])
    assert [r.message.partition("excluded: ")[2] for r in caplog.records] == ["ValueError: no such answer"]


def test_a_grader_that_fails_on_everything_is_an_error_of_its_own(make_pool):
    grade, _ = make_pool()
    with pytest.raises(RewardError, match="fails on every response: ValueError: no such answer"):
        grade(["raise", "raise"])
    assert grade(["yes"])[0].value == 1.0
    assert grade(["raise", "raise"])[0].value is None


def test_a_grader_that_cannot_be_loaded_says_why(user_file):
    target = f"{user_file('import nowhere_to_be_found')}:score"
    pool = GraderPool([target])
    with pytest.raises(RewardError, match="No module named 'nowhere_to_be_found'"):
        pool.grade(target, [("a", [])])


def test_a_worker_that_dies_as_it_starts_is_an_error_and_not_a_loop(user_file):
    target = f"{user_file('import os; os._exit(3)')}:score"
    with pytest.raises(RewardError, match=r"died as it started \(exit status 3\)"):
        GraderPool([target]).grade(target, [("a", [])])


def test_a_worker_that_was_killed_between_two_calls_costs_nothing(make_pool):
    grade, pool = make_pool(workers=1)
    (pid,) = {int(s.value) for s in grade(["pid"])}
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert [s.value for s in grade(["yes", "no"])] == [1.0, 0.0]
    assert pool.restarts == 0


def test_an_interrupted_call_leaves_no_reply_for_the_next(make_pool, monkeypatch):
    grade, pool = make_pool()
    grade(["yes"])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_hear", lambda worker: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            grade(["yes", "yes"])
    assert [s.value for s in grade(["no", "no", "yes"])] == [0.0, 0.0, 1.0]


def test_close_ends_the_workers(make_pool):
    grade, pool = make_pool()
    pids = {int(s.value) for s in grade(["pid"] * 20)}
    pool.close()
    assert all(gone(pid, 1.0) for pid in pids)
    pool.close()
    assert grade(["yes"])[0].value == 1.0


@pytest.mark.parametrize("busy_with", ["pid", pytest.param("native", marks=pytest.mark.slow)])
def test_workers_end_when_the_trainer_is_killed(user_file, tmp_path, busy_with):
    """Idle or in the middle of a call that never returns to the interpreter."""
    target = f"{user_file(GRADER)}:score"
    code = f"""
from lightrft.rewards.pool import GraderPool, PoolOptions
pool = GraderPool([{target!r}], PoolOptions(timeout=0.5, num_workers=1))
print(int(pool.grade({target!r}, [("pid", [])])[0].value), flush=True)
pool.grade({target!r}, [({busy_with!r}, [])])
import time; time.sleep(600)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(trainer.stdout.readline())
    assert alive(worker)
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert gone(worker)


def test_references_are_checked_in_workers():
    pool = GraderPool(["math"], PoolOptions(num_workers=1))
    problems = pool.check("math", ["42", "I don't know", r"\frac{1}{2}"])
    pool.close()
    assert problems[0] is problems[2] is None
    assert "cannot read the reference" in problems[1]


def test_memory_is_bounded_for_built_in_rules():
    """A worker whose limit is below what it needs to start fails to start: the limit is in force."""
    pool = GraderPool(["math"], PoolOptions(num_workers=1, memory_gib=0.02))
    with pytest.raises(RewardError):
        pool.grade("math", [("1", ["1"])])


def test_cores_are_shared_with_the_ranks_of_the_machine(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_workers() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert default_workers() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "128")
    assert default_workers() == 1


def test_math_starts_fast_and_without_torch():
    code = "import sys, lightrft.rewards.worker as w; w.load_target('math'); sys.exit('torch' in sys.modules)"
    start = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert time.monotonic() - start < 5


def test_the_time_of_each_verdict_is_told(make_pool):
    grade, _ = make_pool()
    quick, slow, killed = grade(["yes", "sleep", "native"])
    assert 0 <= quick.seconds < 0.5
    assert 0.6 < slow.seconds < 1.0  # the limit is .7
    assert killed.seconds == pytest.approx(1.0)
