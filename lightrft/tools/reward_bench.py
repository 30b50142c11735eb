"""How good a grader is, before a run pays for its mistakes.

    python -m lightrft.tools.reward_bench --reward gsm8k math --data gsm8k/test.jsonl
    python -m lightrft.tools.reward_bench --reward math --rollouts runs/a/logs/trajectories/step_000010.jsonl

With `--data`, every row is answered with its own reference answer, which a good grader rewards in full: what
it does not is listed with the reason. With `--rollouts`, saved responses are graded again, and the verdicts
compared with those of the run. Graders are compared pair by pair. Other flags are those of train.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from lightrft.config.resolve import Config
from lightrft.config.reward_spec import parse_reward
from lightrft.errors import ConfigError, UserError
from lightrft.rewards.build import metric_name
from lightrft.tools.bench_report import Report
from lightrft.tools.bench_samples import Samples, own_answer_samples, saved_samples
from lightrft.tools.page import Row
from lightrft.tools.run_flags import DATA_FLAGS, REWARD_FLAGS, run_config
from lightrft.trainer.rollout_metrics import passed
from lightrft.trainer.run_data import EVAL_SPLIT, grader_of
from lightrft.types import RewardResult

WHOLE = 1.0 - 1e-6
SLOWEST = 5
TAIL = 160  # characters of a response that are shown


@dataclass(frozen=True)
class Verdicts:
    """What one grader said of all samples."""

    name: str
    result: RewardResult
    ungradable: dict[int, str]  # row -> why no response to it can be graded
    seconds: float  # of the wall clock, with the start of its processes

    def is_whole(self, i: int) -> bool:
        reward = self.result.rewards[i]
        return reward is not None and reward >= WHOLE

    def why(self, i: int) -> str:
        """What stands between row `i` and a whole reward."""
        if i in self.ungradable:
            return f"cannot be graded: {self.ungradable[i]}"
        status, reward = self.result.statuses[i], self.result.rewards[i]
        if status == "unparsed":
            return "states no answer that it can read"
        if reward is None:
            return {"timeout": "no verdict in time"}.get(status, "the grader failed")
        parts = {name: values[i] for name, values in self.result.parts.items() if name != self.name}
        shown = ", ".join(f"{name} {value:g}" for name, value in parts.items() if value is not None)
        return f"scored {reward:g}" + (f" ({shown})" if shown else "")


def grade(name: str, samples: Samples, config: Config) -> Verdicts:
    """All samples by one grader, unweighted.

    Raises:
        RewardError: its processes do not start, or it fails on everything.
    """
    reward = grader_of(name, config)
    began = time.perf_counter()
    try:
        problems = reward.check_references([rollout.prompt for rollout in samples.rollouts])
        result = reward(samples.rollouts)
    finally:
        reward.close()
    place = {rollout.prompt.index: i for i, rollout in enumerate(samples.rollouts)}
    ungradable = {place[problem.index]: problem.reason for problem in problems}
    return Verdicts(metric_name(parse_reward(name)), result, ungradable, time.perf_counter() - began)


def score_row(verdicts: Verdicts) -> Row:
    """One line of the table of graders."""
    result, n = verdicts.result, len(verdicts.result.rewards)
    scored = [reward for reward in result.rewards if reward is not None]
    whole = sum(verdicts.is_whole(i) for i in range(n))
    count = {status: result.statuses.count(status) for status in ("unparsed", "timeout", "error")}
    less = (
        len(scored)
        - whole
        - sum(s == "unparsed" and r is not None for s, r in zip(result.statuses, result.rewards, strict=True))
    )
    slowest = max((s for s in result.seconds if s is not None), default=0.0)
    mean = f"{sum(scored) / len(scored):.4f}" if scored else "none"
    return (
        verdicts.name, mean, f"{whole}/{n}", less, count["unparsed"], count["timeout"], count["error"],
        f"{verdicts.seconds:.2f}", f"{slowest * 1000:.1f} ms",
    )  # fmt: skip


def listed_rows(verdicts: Verdicts, samples: Samples) -> list[Row]:
    """Own answers without a whole reward; of a rollout, the responses without a verdict or an answer."""
    rows: list[Row] = []
    for i, rollout in enumerate(samples.rollouts):
        bad = not verdicts.is_whole(i) if samples.are_right else verdicts.result.statuses[i] != "ok"
        if bad:
            end = rollout.text[-TAIL:]
            references = " | ".join(r[-TAIL:] for r in rollout.prompt.references)
            rows.append((verdicts.name, rollout.prompt.source, verdicts.why(i), references, end))
    return rows


def agreement(one: Verdicts, other: Verdicts) -> tuple[Row, list[int]]:
    """How often two graders call the same response solved, and the rows on which they do not."""
    both = [
        i
        for i, pair in enumerate(zip(one.result.rewards, other.result.rewards, strict=True))
        if None not in pair
    ]
    first, second = ([passed(v.result, i) for i in both] for v in (one, other))
    differ = [i for i, a, b in zip(both, first, second, strict=True) if a != b]
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    share = f"{1 - len(differ) / len(both):.4f}" if both else "none"
    row = (one.name, other.name, len(both), share, only_first, len(differ) - only_first)
    return row, differ


def slowest_rows(verdicts: Verdicts, samples: Samples) -> list[Row]:
    seconds = [(s, i) for i, s in enumerate(verdicts.result.seconds) if s is not None]
    return [
        (
            verdicts.name,
            samples.rollouts[i].prompt.source,
            f"{s * 1000:.1f} ms",
            samples.rollouts[i].text[-TAIL:],
        )
        for s, i in sorted(seconds, reverse=True)[:SLOWEST]
    ]


def bench(samples: Samples, config: Config) -> Report:
    """Grade the samples by every reward of `--reward`, and compare.

    Raises:
        RewardError: see `grade`.
    """
    graders = [grade(spec.name, samples, config) for spec in config.rewards]
    compared = list(graders)
    if samples.saved is not None:
        compared.append(Verdicts("saved", samples.saved, {}, 0.0))
    agreements, disagreements = [], []
    for one, other in combinations(compared, 2):
        row, differ = agreement(one, other)
        agreements.append(row)
        disagreements += [_disagreement(one, other, samples, i) for i in differ]
    return Report(
        samples,
        [score_row(v) for v in graders],
        [row for v in graders for row in listed_rows(v, samples)],
        agreements,
        disagreements,
        [row for v in graders for row in slowest_rows(v, samples)],
    )


def _disagreement(one: Verdicts, other: Verdicts, samples: Samples, i: int) -> Row:
    rollout = samples.rollouts[i]
    said = f"{one.result.rewards[i]:g} and {other.result.rewards[i]:g}"
    return (
        f"{one.name}, {other.name}", rollout.prompt.source, said,
        " | ".join(rollout.prompt.references), rollout.text[-TAIL:],
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lightrft.tools.reward_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", metavar="DATA", help="score the own answers of this data set")
    what.add_argument(
        "--rollouts", type=Path, metavar="FILE", help="score these saved responses (JSON lines)"
    )
    parser.add_argument("--split", default=EVAL_SPLIT, help="of a data set that has several [%(default)s]")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the whole report as a page")
    args, words = parser.parse_known_args(argv)
    try:
        if args.data is not None:
            words += ["--prompt_data", args.data]
        flags = [name for name in DATA_FLAGS if args.data is not None or name != "prompt_data"]
        config = run_config(words, [*flags, *REWARD_FLAGS])
        if not any(word.startswith("--reward") for word in words):
            raise ConfigError("--reward is missing: name the graders to compare, for instance gsm8k math")
        samples = (
            own_answer_samples(config, args.split) if args.data is not None else saved_samples(args.rollouts)
        )
        report = bench(samples, config)
    except UserError as error:
        print(f"reward_bench: error: {error}", file=sys.stderr)
        return error.exit_code
    print(report.text())
    if args.html:
        report.write(args.html)
        print(f"wrote {args.html}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
