"""`python -m tests.sabotage`: break the numeric core on purpose, one line at a time; a test must notice.

A copy of `lightrft/` and `tests/` gets one mutation of tests/mutants.py, and the fast tests named there run
against the copy. Only a failing test counts as caught: a copy that cannot be imported proves nothing. Each
run is a fork of a process that has imported torch and transformers, and not lightrft: a start then costs no
ten seconds, and the fork imports the copy.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 2
LIMIT_S = 180.0  # a mutant that runs longer hangs
PASSED, TESTS_FAILED, NOT_THE_COPY, HANGS, NO_TEST_RAN = 0, 1, 90, 91, 92  # the first two are pytest's
OUTPUT = "pytest.txt"
# Plain asserts and no plugins (below): rewriting and importing them would take most of a run's time.
PYTEST = (
    "-x",
    "-q",
    "-m",
    "not slow",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:unraisableexception",
)


@dataclass(frozen=True)
class Job:
    """Tests to run in a copy, with a mutation or without one."""

    tests: tuple[str, ...]
    mutant: Mutant | None = None


@dataclass
class Running:
    """A job under way in one of the copies."""

    job: Job
    copy: Path
    process: BaseProcess
    started: float
    original: str  # the mutated file before


def mutate(mutant: Mutant, copy: Path) -> str:
    """Apply `mutant` in `copy`; returns what the file was.

    Raises:
        ValueError: its snippet does not stand exactly once in the file.
    """
    source = (copy / mutant.file).read_text()
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} ({mutant.name}) is there {found} times, not once")
    (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
    return source


def make_copy(folder: Path) -> Path:
    """The library and its tests in a folder of their own."""
    for name in ("lightrft", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(tests: tuple[str, ...], copy: Path) -> None:
    """In a fork: run `tests` against the lightrft of `copy`, and exit with pytest's code."""
    output = os.open(copy / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    for name in [n for n in sys.modules if n.partition(".")[0] in {"tests", "lightrft"}]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p).resolve() != ROOT)]
    code = int(pytest.main([*PYTEST, f"--basetemp={copy / 'tmp'}", *tests]))
    lightrft = sys.modules.get("lightrft")
    if code in {PASSED, TESTS_FAILED} and (
        lightrft is None or not Path(str(lightrft.__file__)).is_relative_to(copy)
    ):
        code = NOT_THE_COPY
    sys.stdout.flush()
    os._exit(code)


def start(job: Job, copy: Path) -> Running:
    """Mutate the copy and set its tests going."""
    original = mutate(job.mutant, copy) if job.mutant else ""
    process = mp.get_context("fork").Process(target=run_tests, args=(job.tests, copy))
    process.start()
    return Running(job, copy, process, time.monotonic(), original)


def finish(running: Running) -> int:
    """Exit code of a job that has ended, or has run for too long; the copy is whole again."""
    if running.process.is_alive():
        running.process.kill()
        running.process.join()
        code = HANGS
    else:
        code = running.process.exitcode or 0
    if code == TESTS_FAILED and not failed_test(running.copy).startswith("FAILED"):
        code = NO_TEST_RAN  # with -x, pytest ends so after an error of an import or a fixture, too
    if running.job.mutant:
        (running.copy / running.job.mutant.file).write_text(running.original)
    return code


def run(jobs: Iterable[Job], copies: list[Path]) -> Iterator[tuple[Running, int]]:
    """Each job with its exit code, as they end; as many at once as there are copies."""
    waiting, free, busy = list(jobs), list(copies), list[Running]()
    while waiting or busy:
        while waiting and free:
            busy.append(start(waiting.pop(0), free.pop()))
        wait([b.process.sentinel for b in busy], timeout=5)
        for b in list(busy):
            if not b.process.is_alive() or time.monotonic() - b.started > LIMIT_S:
                yield b, finish(b)
                busy.remove(b)
                free.append(b.copy)


def failed_test(copy: Path) -> str:
    """The first test that failed in `copy`, or the end of what pytest said."""
    lines = (copy / OUTPUT).read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (failed or lines[-1:] or [""])[0][:160]


def unmutated_failures(mutants: list[Mutant], copies: list[Path]) -> list[str]:
    """What fails before anything is mutated: nothing could be learnt from such tests."""
    jobs = [Job(tests) for tests in dict.fromkeys(m.tests for m in mutants)]
    return [
        f"{' '.join(b.job.tests)}: exit code {code}: {failed_test(b.copy)}"
        for b, code in run(jobs, copies)
        if code != PASSED
    ]


VERDICTS = {
    PASSED: "SURVIVED",
    TESTS_FAILED: "caught",
    HANGS: "HANGS, not caught",
    NO_TEST_RAN: "BROKEN, not caught",
    NOT_THE_COPY: "NOT TESTED: the tests imported another lightrft",
}


def survivors(mutants: list[Mutant], copies: list[Path]) -> list[str]:
    """Run every mutant, a line each; returns those that no test caught."""
    left = []
    for b, code in run([Job(m.tests, m) for m in mutants], copies):
        assert b.job.mutant is not None
        name = f"{b.job.mutant.file}: {b.job.mutant.name}"
        verdict = VERDICTS.get(code, f"BROKEN, not caught (pytest exit code {code})")
        print(f"{verdict:9} {name} | {failed_test(b.copy)}", flush=True)
        if code != TESTS_FAILED:
            left.append(f"{name}: {verdict}")
    return left


def import_what_is_slow() -> None:
    """What every fork needs and no mutation touches."""
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)  # a fork inherits no threads
    slow = {m.__name__ for m in (datasets, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast)}
    assert len(slow) == 4  # transformers imports a name when it is asked for
    assert "lightrft" not in sys.modules


def main() -> int:
    """0 if every mutant is caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="mutants with this in their file or name")
    only = parser.parse_args().only
    mutants = [m for m in MUTANTS if only in f"{m.file}: {m.name}"]
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.dont_write_bytecode = True  # two mutants of one length within a second would share a .pyc
    import_what_is_slow()
    with tempfile.TemporaryDirectory() as temporary:
        copies = [make_copy(Path(temporary).resolve() / f"copy{i}") for i in range(SLOTS)]
        failures = unmutated_failures(mutants, copies)
        if failures:
            print("tests fail without any mutation:", *failures, sep="\n  ")
            return 1
        left = survivors(mutants, copies)
    if left:
        print("not caught:", *left, sep="\n  ")
    print(f"sabotage: {len(mutants) - len(left)} of {len(mutants)} mutants caught")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
