"""RLOO, leave-one-out (arXiv 2402.14740, eq. 7): the baseline is the mean of the other answers.

r_i - (sum r - r_i) / (n - 1). 3 right of 8 -> .7143 and -.4286. A single survivor of a group has no others
and teaches nothing.
"""

from __future__ import annotations

from lightrft.algorithms.advantages._common import (
    AdvantageInputs,
    AdvantageOutputs,
    group_stats,
    rewards_to_go,
)
from lightrft.algorithms.masking import masked

NEEDS_GROUPS = True
NEEDS_CRITIC = False
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """The advantage over the group's others, and what is to come of it, `[B, T]`."""
    stats = group_stats(inputs.rewards, inputs.group_ids)
    rewards = inputs.rewards.double()
    others = (stats.mean * stats.size - rewards) / (stats.size - 1).clamp(min=1)
    return AdvantageOutputs(rewards_to_go(masked(rewards - others, ~stats.tied), inputs))
