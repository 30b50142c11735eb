"""Grader processes that a run can rely on: a hung or crashed grader costs its own sample and nothing else.

Fresh interpreters, started by `subprocess` when the first sample comes: never a fork of this process, whose
CUDA context and threads a fork would copy half alive, and never a re-import of the user's main script. One
sample is with a worker at a time, so whose fault a death is, and since when a worker is silent, needs no
guessing. No signals are used in this process: it works on any thread.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightrft import registry
from lightrft.errors import RewardError
from lightrft.rewards.score import Score
from lightrft.rewards.worker import GRACE

if TYPE_CHECKING:
    from lightrft.types import RewardStatus

log = logging.getLogger(__name__)

START_LIMIT = 120.0  # seconds for a worker to import its graders, on a busy machine
READ_SIZE = 1 << 16
MAX_DEFAULT_WORKERS = 8
MAX_WARNINGS = 5  # different ones, in a run

Request = dict[str, Any]
Reply = dict[str, Any]


@dataclass(frozen=True)
class PoolOptions:
    """How grader processes run.

    A power tower in an answer can ask for all the memory of the machine: `memory_gib` bounds the address
    space of a worker. It does not bind workers that run a user's grader, which may load a model.
    """

    timeout: float = 10.0  # seconds a sample
    num_workers: int = 0  # 0: see `default_workers`
    memory_gib: float = 4.0


def default_workers() -> int:
    """Cores of this process over the ranks of this machine (`LOCAL_WORLD_SIZE` of the launchers), 1 to 8."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_DEFAULT_WORKERS, max(1, len(os.sched_getaffinity(0)) // ranks))


class _Worker:
    """The parent's end of one grader process: idle, or busy with the request numbered `job`."""

    def __init__(self, settings: dict[str, Any]):
        # Its own session: Ctrl-C in the terminal is the trainer's to handle, and a kill reaches its children.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lightrft.rewards.worker", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            start_new_session=True,
        )
        self.job: int | None = None
        self.ready = False
        self.deadline = time.monotonic() + START_LIMIT
        self._buffer = b""

    def fileno(self) -> int:
        return self.process.stdout.fileno()  # type: ignore[union-attr]  # a pipe was asked for

    def send(self, job: int, request: Request, deadline: float) -> None:
        """Hand over a request. A worker that died meanwhile is noticed where its reply is read."""
        self.job, self.deadline = job, deadline
        line = json.dumps({"id": job, **request}).encode() + b"\n"
        try:
            self.process.stdin.write(line)  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            log.debug("grader process %d died before request %d", self.process.pid, job)

    def receive(self) -> Reply | None:
        """The reply, None while only part of it has come; EOFError when the worker is dead."""
        data = os.read(self.fileno(), READ_SIZE)
        if not data:
            raise EOFError
        self._buffer += data
        if not self._buffer.endswith(b"\n"):
            return None
        reply, self._buffer = json.loads(self._buffer), b""
        return reply

    def kill(self) -> int:
        """End the process and all that it started; its exit status."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            log.debug("grader process %d had ended by itself", self.process.pid)
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                log.debug("grader process %d left a request unread", self.process.pid)
        return status


class GraderPool:
    """Worker processes that can run the graders `targets` (rule names, or `file.py:function`)."""

    def __init__(self, targets: Sequence[str], options: PoolOptions | None = None):
        self.options = options or PoolOptions()
        self.restarts = 0  # workers replaced after a hang or a crash
        own_code_only = not any(registry.is_user_path(target) for target in targets)
        self._settings: dict[str, Any] = {
            "targets": list(targets),
            "timeout": self.options.timeout,
            "memory_gib": self.options.memory_gib if own_code_only else 0,
        }
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._proven: set[str] = set()  # targets that have given a verdict

    def grade(self, target: str, samples: Sequence[tuple[str, Sequence[str]]]) -> list[Score]:
        """A Score for each `(response, references)`, in order; without a value where there is no verdict.

        Raises:
            RewardError: a grader cannot be loaded, workers die as they start, or a user's grader fails on
                every sample it was ever given: the fault is then its own.
        """
        requests = [{"target": target, "response": r, "references": list(refs)} for r, refs in samples]
        replies = self._run(requests)
        self._report_failures(target, replies)
        return [Score(r["value"], r["parts"], r["status"], r["seconds"]) for r in replies]

    def check(self, target: str, references: Sequence[str]) -> list[str | None]:
        """Why each reference cannot be graded against; None where it can."""
        replies = self._run([{"target": target, "reference": reference} for reference in references])
        return [reply["problem"] for reply in replies]

    def close(self) -> None:
        """End the workers. A pool that is used again starts new ones."""
        with self._lock:
            self._kill_all()

    def _kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _report_failures(self, target: str, replies: list[Reply]) -> None:
        failures = [reply["message"] for reply in replies if reply["message"]]
        if len(failures) < len(replies):
            self._proven.add(target)
        elif replies and registry.is_user_path(target) and target not in self._proven:
            raise RewardError(f"--reward {target} fails on every response: {failures[0]}")
        for message in failures:
            if message not in self._warned and len(self._warned) < MAX_WARNINGS:
                self._warned.add(message)
                log.warning("--reward %s: a sample is excluded: %s", target, message)

    def _run(self, requests: list[Request]) -> list[Reply]:
        with self._lock:
            try:
                return self._dispatch(requests)
            except BaseException:
                # An interrupted call leaves replies in the pipes, which the next call would take for its own.
                self._kill_all()
                raise

    def _dispatch(self, requests: list[Request]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        pending = deque(enumerate(requests))
        for dead in [worker for worker in self._workers if worker.process.poll() is not None]:
            dead.kill()
            self._workers.remove(dead)
        size = self.options.num_workers or default_workers()
        while len(self._workers) < min(size, len(requests)):
            self._workers.append(_Worker(self._settings))
        while len(replies) < len(requests):
            self._assign(pending)
            heard, overdue = self._wait()
            news = [self._hear(worker) for worker in heard] + [self._time_out(worker) for worker in overdue]
            replies |= {reply["id"]: reply for reply in news if reply is not None}
        return [replies[i] for i in range(len(requests))]

    def _assign(self, pending: deque[tuple[int, Request]]) -> None:
        limit = self.options.timeout + GRACE
        for worker in self._workers:
            if pending and worker.ready and worker.job is None:
                worker.send(*pending.popleft(), time.monotonic() + limit)

    def _wait(self) -> tuple[list[_Worker], list[_Worker]]:
        """Workers that have said something, and silent ones that are past their deadline."""
        watched = [w for w in self._workers if w.job is not None or not w.ready]
        with selectors.DefaultSelector() as selector:
            for worker in watched:
                selector.register(worker, selectors.EVENT_READ, worker)
            first = min(worker.deadline for worker in watched)
            heard = [key.data for key, _ in selector.select(max(0.0, first - time.monotonic()))]
        now = time.monotonic()
        return heard, [w for w in watched if w.deadline <= now and w not in heard]

    def _hear(self, worker: _Worker) -> Reply | None:
        """The reply of a worker, or the one that its death stands for; None for news of another kind."""
        try:
            reply = worker.receive()
        except EOFError:
            status = self._replace(worker, "died")
            return _no_verdict(worker, "error", f"the grader process died (exit status {status})", None)
        if reply is None:
            return None
        if worker.ready:
            worker.job = None
            return reply
        if "failed" in reply:
            raise RewardError(
                f"the graders {', '.join(self._settings['targets'])} cannot be loaded: {reply['failed']}"
            )
        worker.ready = True
        return None

    def _time_out(self, worker: _Worker) -> Reply:
        self._replace(worker, f"was still not ready after {START_LIMIT:g} s")
        limit = self.options.timeout
        return _no_verdict(worker, "timeout", f"no verdict within {limit:g} s; worker killed", limit + GRACE)

    def _replace(self, worker: _Worker, fate: str) -> int:
        """Kill `worker` and start another in its place; the exit status of the killed one."""
        status = worker.kill()
        self._workers.remove(worker)
        if not worker.ready:  # another would fare no better
            targets = ", ".join(self._settings["targets"])
            raise RewardError(f"a grader process for {targets} {fate} as it started (exit status {status})")
        self._workers.append(_Worker(self._settings))
        self.restarts += 1
        return status


def _no_verdict(worker: _Worker, status: RewardStatus, message: str, seconds: float | None) -> Reply:
    return {
        "id": worker.job,
        "value": None,
        "parts": {},
        "status": status,
        "message": message,
        "problem": message,
        "seconds": seconds,
    }
