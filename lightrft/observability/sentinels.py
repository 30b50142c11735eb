"""Checks of a run's health, made from the metrics of every step.

Each compares one globally reduced number with two limits: above the first it warns, above the second it
fails. A failed check does not stop the run; it says that the numbers cannot be trusted, what that usually
means and which flag to turn.

Identities (ratio 1, KL 0, engine = trainer) have limits by precision. fp32 leaves the rounding of the last
digits: 1e-6 to 1e-5 in a log-prob. bf16 keeps 8 bits, so a logit of 20 is off by up to 0.06, and a batch of
another shape is summed in another order; means over many tokens are about 0.01, the worst token some tenths.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "bf16"]
Status = Literal["ok", "warn", "fail"]
SEVERITY: dict[Status, int] = {"ok": 0, "warn": 1, "fail": 2}

CALM_STEPS = 10  # steps in a row before a recovery is reported: numbers near a limit cross it often
WIDTH = 110


@dataclass(frozen=True)
class Check:
    """One sentinel: a metric, its limits `(warn, fail)` by precision, what it means and what to do."""

    name: str
    metric: str
    meaning: str
    advice: str
    fp32: tuple[float, float]
    bf16: tuple[float, float]
    first_update_only: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a check found. `threshold` is the limit that was crossed, or the nearest one when all is well."""

    name: str
    status: Status
    value: float
    threshold: float
    message: str


_SAME_FORWARD = (
    "the log-probs before the update and those within it come from different computations: look for dropout, "
    "another attention path (--attn_implementation), padding or temperature that differs between the two"
)
_SAME_ENGINE = (
    "the engine does not run the weights or the sampling that the trainer thinks: check --check_weight_sync, "
    "--engine_dtype, --attn_implementation; --rollout_is token corrects a small gap"
)

CHECKS = (
    Check(
        "ratio",
        "policy/ratio_max_deviation",
        "largest |ratio - 1| while the policy has not moved (first step)",
        _SAME_FORWARD,
        fp32=(1e-4, 1e-2),
        bf16=(0.3, 1.0),
    ),
    Check(
        "first_kl",
        "policy/first_kl",
        "KL to the policy before the update, at its first optimizer step",
        _SAME_FORWARD,
        fp32=(1e-6, 1e-4),
        bf16=(1e-3, 1e-2),
    ),
    Check(
        "reference_kl",
        "policy/kl",
        "KL to the reference while both are the same weights",
        "the reference is not the model that is trained: another folder, precision or temperature",
        fp32=(1e-5, 1e-3),
        bf16=(5e-3, 5e-2),
        first_update_only=True,
    ),
    Check(
        "gap_mean",
        "rollout/logprob_gap_mean",
        "mean |trainer - engine| of the sampled tokens' log-probs",
        _SAME_ENGINE,
        fp32=(1e-4, 1e-2),
        bf16=(0.08, 0.25),  # decoding step by step rounds otherwise than one pass: .04 to .06 is usual
    ),
    Check(
        "gap_max",
        "rollout/logprob_gap_max",
        "largest |trainer - engine| of a sampled token's log-prob",
        _SAME_ENGINE,
        fp32=(1e-2, 0.5),
        bf16=(1.0, 3.0),
    ),
    Check(
        "zero_spread",
        "rollout/zero_spread_share",
        "share of prompts whose samples all got the same reward",
        "they teach nothing; the prompts are too easy or too hard, or the reward never varies: raise "
        "--n_samples_per_prompt or --temperature, choose other prompts, or filter with --dynamic_sampling",
        fp32=(0.6, 0.95),
        bf16=(0.6, 0.95),
    ),
    Check(
        "truncated",
        "rollout/truncated_share",
        "share of responses that were cut by the length limit",
        "what is cut is graded without its end: raise --generate_max_len (and --max_len), or shorten "
        "responses with --overlong_buffer",
        fp32=(0.1, 0.5),
        bf16=(0.1, 0.5),
    ),
    Check(
        "unparsed",
        "rollout/unparsed_share",
        "share of responses in which the reward found no answer",
        "the model does not use the format that --reward reads: ask for it in --system_prompt or "
        "--input_template, pass --apply_chat_template for a chat model, or choose another rule",
        fp32=(0.3, 0.9),
        bf16=(0.3, 0.9),
    ),
    Check(
        "excluded",
        "rollout/excluded_share",
        "share of samples left out because their reward failed",
        "the reward raises, times out or cannot be reached: see its first error above, and --reward_timeout",
        fp32=(0.0, 0.2),
        bf16=(0.0, 0.2),
    ),
    Check(
        "skipped_steps",
        "train/skipped_steps",
        "optimizer steps skipped so far: loss or gradient not finite",
        "lower --actor_learning_rate, clip with --max_norm, or look for extreme rewards (--reward_clip)",
        fp32=(0.0, 10.0),
        bf16=(0.0, 10.0),
    ),
)


def gap_limits(dtype: Dtype) -> tuple[float, float]:
    """The mean gap of log-probs between trainer and engine that is usual at most, and that cannot be."""
    check = next(c for c in CHECKS if c.name == "gap_mean")
    return check.fp32 if dtype == "fp32" else check.bf16


def run_sentinels(metrics: Mapping[str, float], dtype: Dtype, first_update: bool) -> list[Verdict]:
    """A verdict for every check whose metric is there, in the order of `CHECKS`.

    `first_update` says that no weight has moved yet in this run, so that the reference still is the policy.
    A metric that is not a number fails its check.
    """
    return [
        _judge(check, metrics[check.metric], check.fp32 if dtype == "fp32" else check.bf16)
        for check in CHECKS
        if check.metric in metrics and (first_update or not check.first_update_only)
    ]


def _judge(check: Check, value: float, limits: tuple[float, float]) -> Verdict:
    warn, fail = limits
    size = abs(value)  # an estimate of a KL can be below 0 by rounding, or by a fault
    if math.isnan(size) or size > fail:
        status: Status = "fail"
        threshold = fail
    else:
        status = "warn" if size > warn else "ok"
        threshold = warn
    message = check.meaning if status == "ok" else f"{check.meaning}; {check.advice}"
    return Verdict(check.name, status, value, threshold, message)


def render(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as an aligned table, one below the other; long messages are wrapped."""
    lines = []
    for v in verdicts:
        word = v.status if v.status == "ok" else v.status.upper()
        relation = "?" if math.isnan(v.value) else "<=" if v.status == "ok" else ">"
        head = f"  {word:<5}{v.name:<14}{v.value:<9.3g} {relation:<2} {v.threshold:<7.4g}"
        indent = " " * (len(head) + 1)
        lines += textwrap.wrap(f"{head} {v.message}", WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


class SentinelBoard:
    """Judges every step and says when something changes.

    A change for the worse is reported at once, one for the better after `CALM_STEPS` steps in a row.
    `resumed` says that the weights have moved in an earlier run.
    """

    def __init__(self, dtype: Dtype, resumed: bool = False) -> None:
        self._dtype = dtype
        self._first_update = not resumed
        self._latest: dict[str, Verdict] = {}
        self._reported: dict[str, Status] = {}
        self._calm: Counter[str] = Counter()
        self._history: dict[str, Counter[Status]] = {}

    def check(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Judge one step; returns `sentinel/<name>`: 0 ok, 1 warn, 2 fail."""
        verdicts = run_sentinels(metrics, self._dtype, self._first_update)
        self._first_update = False
        for v in verdicts:
            self._latest[v.name] = v
            self._history.setdefault(v.name, Counter())[v.status] += 1
            better = v.name in self._reported and SEVERITY[v.status] < SEVERITY[self._reported[v.name]]
            self._calm[v.name] = self._calm[v.name] + 1 if better else 0
        return {f"sentinel/{v.name}": float(SEVERITY[v.status]) for v in verdicts}

    def changes(self) -> str:
        """What the last `check` changed, as a table; all of it at the first call; "" for nothing."""
        first = not self._reported
        changed = [v for v in self._latest.values() if self._is_news(v)]
        for v in changed:
            self._reported[v.name] = v.status
            self._calm[v.name] = 0
        if not changed:
            return ""
        return f"{'sentinels at the first step' if first else 'sentinels: changed'}\n{render(changed)}"

    def _is_news(self, v: Verdict) -> bool:
        reported = self._reported.get(v.name)
        if reported is None:
            return True
        worse = SEVERITY[v.status] > SEVERITY[reported]
        return worse or self._calm[v.name] >= CALM_STEPS

    def table(self) -> str:
        """The latest verdict of each check, and how often it warned and failed in this run."""
        if not self._latest:
            return "sentinels: no step was taken"
        lines = ["sentinels at the end", render(list(self._latest.values()))]
        for name, counts in self._history.items():
            if bad := [f"{word} {counts[s]}" for s, word in _BAD.items() if counts[s]]:
                lines.append(f"  {name}: {' and '.join(bad)} of {counts.total()} steps")
        return "\n".join(lines)


_BAD: dict[Status, str] = {"warn": "warned in", "fail": "failed in"}
