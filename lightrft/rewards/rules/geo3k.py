r"""Geometry3K: 0.9 · answer + 0.1 · format, the weights of the recipes that train on it.

- `answer` is what `math` says: its references are numbers and expressions (`2 \sqrt{221}`, `x=5`).
- `format` is 1 for `<think>…</think>` and then a complete `\boxed{…}`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightrft.rewards.rules import math
from lightrft.rewards.rules.format import thinks_then_boxes
from lightrft.rewards.score import Score

IN_PROCESS = False
NEEDS_REFERENCES = True
PARTS = ("answer", "format")

ANSWER_WEIGHT = 0.9
FORMAT_WEIGHT = 0.1

prepare = math.prepare
check_reference = math.check_reference


def score(response: str, references: Sequence[str]) -> Score:
    """Value in {0, 0.1, 0.9, 1}; excluded where no reference can be read."""
    verdict = math.score(response, references)
    if verdict.value is None:
        return verdict
    form = float(thinks_then_boxes(response))
    value = ANSWER_WEIGHT * verdict.value + FORMAT_WEIGHT * form
    return Score(value, {"answer": verdict.value, "format": form}, verdict.status)
