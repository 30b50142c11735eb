"""A generation that stands still ends, in good order or from outside."""

import threading
import time

import pytest

from lightrft.errors import EngineError
from lightrft.rollout.watchdog import Watchdog
from tests.ranks import WORLDS, launch


def test_progress_keeps_it_quiet():
    with Watchdog(0.2, 4, end=lambda *_: pytest.fail("ended")) as watchdog:
        for _ in range(4):
            time.sleep(0.1)
            watchdog.advance(1)
            watchdog.check()
    assert watchdog.finished == 4


def test_standing_still_is_an_error_that_names_the_flag():
    with Watchdog(0.05, 8, end=lambda *_: None) as watchdog:
        watchdog.advance(3)
        time.sleep(0.1)
        with pytest.raises(
            EngineError, match=r"stalled: no response finished for 0.05 s \(3 of 8 done\).*--engine_timeout"
        ):
            watchdog.check()


def test_a_loop_that_never_comes_back_is_ended_from_outside():
    ended = threading.Event()
    with Watchdog(0.05, 8, end=lambda message, code: ended.set(), grace=0.05):
        assert ended.wait(5)


def test_the_thread_ends_with_the_block():
    before = threading.active_count()
    with Watchdog(60, 1):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
def test_one_ranks_stall_ends_all_with_its_message(tmp_path):
    script = tmp_path / "stalls.py"
    script.write_text(
        "import time\n"
        "from datetime import timedelta\n"
        "from lightrft.distributed.collectives import barrier, rank\n"
        "from lightrft.distributed.deepspeed import init_distributed\n"
        "from lightrft.distributed.failure import shared_failure\n"
        "from lightrft.rollout.watchdog import Watchdog\n"
        "init_distributed(timedelta(seconds=600))\n"
        "with shared_failure(rank(), 2):\n"
        "    if rank() == 1:\n"
        "        with Watchdog(0.5, 4, grace=0.5):\n"
        "            time.sleep(600)\n"
        "    barrier()\n"
    )
    began = time.monotonic()
    done = launch(2, [str(script)], timeout=500)
    assert time.monotonic() - began < 400
    assert done.returncode != 0
    assert (
        "rank 0 stops, since rank 1 failed: generation stalled: no response finished for 0.5 s" in done.stderr
    )
