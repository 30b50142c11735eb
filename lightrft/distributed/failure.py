"""One rank's failure ends all ranks with that rank's message; none is left waiting in a collective."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

KEY = "lightrft/failure"
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
_active: list[FailureMonitor] = []  # this process's monitor, while `shared_failure` runs


class FailureMonitor:
    """A thread on every rank that watches a key in the launcher's store.

    The failing rank writes its message there; the others print it and leave at once. Uses a connection of its
    own: the default store's is busy while its rank waits in a collective.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="failure-monitor", daemon=True)
        self.thread.start()

    def report(self, message: str, exit_code: int) -> None:
        """Tell the other ranks. The first report wins."""
        self.stopped.set()
        self.store.compare_set(KEY, "", f"{exit_code}|{self.rank}|{message}")
        # Rank 0 hosts the store: it stays until the others have read the message.
        time.sleep(3 * POLL_SECONDS)

    def stop(self) -> None:
        """Stop watching; call before the process group is destroyed."""
        self.stopped.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.stopped.wait(POLL_SECONDS):
            try:
                if not self.store.check([KEY]):
                    continue
                code, rank, message = self.store.get(KEY).decode().split("|", 2)
            except (RuntimeError, dist.DistError):
                self._leave("the connection to rank 0 is lost", 1)
                return
            self._leave(f"rank {rank} failed: {message}", int(code))

    def _leave(self, message: str, exit_code: int) -> None:
        if self.stopped.is_set():
            return
        print(f"lightrft: rank {self.rank} stops, since {message}", file=sys.stderr, flush=True)
        os._exit(exit_code or 1)


@contextmanager
def shared_failure(rank: int, world_size: int) -> Iterator[None]:
    """Run the body so that an exception in it, on any rank, ends every rank."""
    if world_size == 1:
        yield
        return
    monitor = FailureMonitor(rank)
    _active.append(monitor)
    try:
        yield
    except BaseException as error:
        code = getattr(error, "exit_code", 1)
        monitor.report(f"{type(error).__name__}: {error}", code if isinstance(code, int) else 1)
        raise
    finally:
        _active.remove(monitor)
        monitor.stop()


def end_all_ranks(message: str, exit_code: int) -> None:
    """End this process and all others with `message`. For a thread whose main thread hangs: never returns."""
    print(f"lightrft: {message}", file=sys.stderr, flush=True)
    for monitor in _active:
        monitor.report(message, exit_code)
    os._exit(exit_code)
