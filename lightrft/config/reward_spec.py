"""The words of `--reward`: NAME[:WEIGHT], where NAME may be path/to/file.py:function."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_USER_FILE = re.compile(r"(?P<name>.+\.py:[^:\d][^:]*)(?::(?P<weight>[^:]*))?")


@dataclass(frozen=True)
class RewardSpec:
    """One reward of a sum: `math:0.9` is `RewardSpec("math", 0.9)`."""

    name: str
    weight: float = 1.0


def parse_reward(text: str) -> RewardSpec:
    """One word of `--reward`.

    Raises:
        ValueError: the weight is not a finite number; the message repeats `text`.
    """
    match = _USER_FILE.fullmatch(text)
    if match is not None:
        name, weight = match["name"], match["weight"]
    else:
        name, colon, rest = text.partition(":")
        weight = rest if colon else None
    if weight is None:
        return RewardSpec(name)
    try:
        value = float(weight)
    except ValueError:
        raise ValueError(f"{text}: the weight {weight!r} is not a number: write {name}:0.5") from None
    if not math.isfinite(value):
        raise ValueError(f"{text}: the weight must be finite")
    return RewardSpec(name, value)
