"""Learning rate as a function of the optimizer step: warm-up, then constant, cosine or linear."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "cosine", "linear"]
FLOOR = 0.1  # cosine and linear end at this share of the peak: RL keeps learning to the last step


def learning_rate(step: int, peak: float, warmup_steps: int, total_steps: int, schedule: Schedule) -> float:
    """The rate of optimizer step `step` (0-based).

    Warm-up climbs linearly and reaches `peak` at step `warmup_steps`; its first step is already above 0.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    remaining = (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1 - progress
    return peak * (FLOOR + (1 - FLOOR) * remaining)
