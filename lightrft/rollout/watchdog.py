"""Notices that generation stands still, and ends all ranks with a message instead of letting them wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lightrft.distributed.failure import end_all_ranks
from lightrft.errors import EngineError

GRACE_SECONDS = 10.0  # for the main thread to raise by itself, before the process is ended from outside


class Watchdog:
    """Guards one generation of `total` responses; a context manager.

    The generating loop reports what has finished and asks `check` between the engine's steps, which raises in
    good order. A step that never returns cannot raise: then a thread reports the failure to all ranks and
    ends this process.
    """

    def __init__(
        self,
        timeout: float,
        total: int,
        end: Callable[[str, int], None] = end_all_ranks,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.timeout = timeout
        self.total = total
        self.finished = 0
        self._end = end
        self._grace = grace
        self._moved_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="generation-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._moved_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def advance(self, count: int) -> None:
        """`count` more responses have finished."""
        self.finished += count
        self._moved_at = time.monotonic()

    def check(self) -> None:
        """Raises EngineError where nothing has finished for too long."""
        if time.monotonic() - self._moved_at > self.timeout:
            raise EngineError(self._message())

    def _watch(self) -> None:
        while True:
            left = self._moved_at + self.timeout + self._grace - time.monotonic()
            if left <= 0:
                self._end(self._message(), EngineError.exit_code)
                return
            if self._over.wait(left):
                return

    def _message(self) -> str:
        return (
            f"generation stalled: no response finished for {self.timeout:g} s ({self.finished} of "
            f"{self.total} done). If responses may take that long, raise --engine_timeout; else look at the "
            "GPUs (nvidia-smi) and lower --engine_max_num_seqs or --generate_max_len"
        )
