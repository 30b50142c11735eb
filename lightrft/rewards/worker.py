"""A grader process: `python -m lightrft.rewards.worker SETTINGS`. No torch here: it must start fast.

It reads one JSON request a line from standard input and writes one JSON reply a line to standard output,
which it keeps to itself: what a grader prints goes to standard error. JSON and not pickle, so that nothing a
worker sends is ever run. It ends when its parent closes the pipe, and so when the parent dies.

Time limits, from the gentle to the final: an alarm raises in this process at the limit, which costs only the
sample; the parent kills a worker that is still silent `GRACE` seconds later (code that never returns to the
interpreter); where the parent is gone too, a watchdog thread of the C library ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from lightrft import registry
from lightrft.rewards.score import as_score, excluded

if TYPE_CHECKING:
    from lightrft.types import RewardStatus

GRACE = 2.0  # seconds between the alarm and the kill
RULES = "rewards/rules"
GIB = 1 << 30

T = TypeVar("T")
Target = tuple[Callable[..., Any], Callable[[str], "str | None"] | None]


class _TimeUp(BaseException):
    """Not an Exception: graders catch those around every step they take."""


def load_target(target: str) -> Target:
    """`(score, check_reference)` of a rule's name or of a user's `file.py:function`; the rule is prepared."""
    found = registry.load(RULES, target, "--reward")
    if registry.is_user_path(target):
        return found, None
    if hasattr(found, "prepare"):
        found.prepare()
    return found.score, getattr(found, "check_reference", None)


def _raise_time_up(signum: int, frame: FrameType | None) -> None:
    raise _TimeUp


def _within(seconds: float, work: Callable[[], T]) -> T:
    """`work()`, or `_TimeUp` after `seconds`. The alarm rings once, so none can arrive after this returns."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limited(work: Callable[[], T], seconds: float) -> tuple[T | None, RewardStatus, str]:
    """What `work` returned, or None; how it went; and what there is to say about that."""
    try:
        return _within(seconds, work), "ok", ""
    except _TimeUp:
        return None, "timeout", f"no verdict within {seconds:g} s"
    except Exception as error:  # a grader's own failure costs its sample, and is reported with it
        return None, "error", f"{type(error).__name__}: {error}"[:500]


def _answer(request: dict[str, Any], targets: dict[str, Target], seconds: float) -> dict[str, Any]:
    score, check = targets[request["target"]]
    reply: dict[str, Any] = {"id": request["id"]}
    if "reference" in request:
        problem, _, failure = _limited(lambda: check(request["reference"]) if check else None, seconds)
        return reply | {"problem": failure or problem}
    asked = {"response": request["response"], "references": request["references"]}
    began = time.perf_counter()
    verdict, status, failure = _limited(lambda: as_score(score(**asked)), seconds)
    verdict = verdict or excluded(status)
    return reply | {
        "value": verdict.value,
        "parts": verdict.parts,
        "status": verdict.status,
        "message": failure,
        "seconds": time.perf_counter() - began,
    }


def _private_channels() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes to the parent, out of reach of what graders read and print."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return requests, replies


def serve(settings: dict[str, Any]) -> None:
    """Answer requests until the parent closes the pipe; first, say "ready" or what failed."""
    requests, replies = _private_channels()
    if settings["memory_gib"]:
        limit = int(settings["memory_gib"] * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    try:
        targets = {target: load_target(target) for target in settings["targets"]}
    except Exception as error:  # the parent raises it, with its words
        send({"failed": f"{type(error).__name__}: {error}"})
        return
    signal.signal(signal.SIGALRM, _raise_time_up)
    send({"ready": True})
    seconds = settings["timeout"]
    with Path(os.devnull).open("w") as nowhere:
        for line in requests:
            faulthandler.dump_traceback_later(seconds + 2 * GRACE, exit=True, file=nowhere)
            reply = _answer(json.loads(line), targets, seconds)
            faulthandler.cancel_dump_traceback_later()
            send(reply)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the parent is gone; there is nobody to tell
        serve(json.loads(sys.argv[1]))
