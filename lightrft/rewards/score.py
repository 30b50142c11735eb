"""What a grader says about one response. No torch: grader processes import this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightrft.types import RewardStatus


@dataclass(frozen=True)
class Score:
    """One verdict.

    `value` None excludes the sample. `status`: "unparsed" where the response states no answer that could be
    read (its value is then usually 0), which is counted apart from a wrong answer.
    Example: `Score(0.9, {"answer": 1.0, "format": 0.0})`.
    """

    value: float | None
    parts: dict[str, float | None] = field(default_factory=dict)
    status: RewardStatus = "ok"
    seconds: float | None = None  # that the verdict took; None where it was not measured


def excluded(status: RewardStatus = "error") -> Score:
    """No verdict: the sample takes no part in training and is counted under `status`."""
    return Score(None, {}, status)


def _finite(value: Any, what: str) -> float | None:
    if value is None:
        return None
    number = float(value) if hasattr(value, "__float__") else None
    if number is None:
        raise TypeError(f"{what} must be a number or None, not {type(value).__name__} {str(value)[:60]!r}")
    return number if math.isfinite(number) else None


def as_score(value: Any) -> Score:
    """The Score for what a user's function returned for one response.

    A number is the reward; a dict holds it under "reward" and its other entries are parts; None, NaN and
    infinities exclude the sample.

    Raises:
        TypeError: anything else; the message says what it was.
    """
    if isinstance(value, Score):
        number, parts, status = _finite(value.value, "a score"), value.parts, value.status
    elif isinstance(value, Mapping):
        if "reward" not in value:
            raise TypeError(f"a dict of parts needs the key 'reward'; it has {sorted(map(str, value))}")
        number, status = _finite(value["reward"], "'reward'"), "ok"
        parts = {str(k): _finite(v, f"part {k!r}") for k, v in value.items() if k != "reward"}
    else:
        number, parts, status = _finite(value, "a reward"), {}, "ok"
    if number is None and status in ("ok", "unparsed"):
        status = "error"
    return Score(number, parts, status)
