"""REINFORCE++-baseline (arXiv 2501.03262, section 3): minus the group's mean, then whitened over the batch.

A tied group stands at 0 before whitening; what whitening makes of it is the distance to the batch's mean.
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
WHITENS = True


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """r - mean(group) at the last token, and what is to come of it, `[B, T]`, before whitening."""
    stats = group_stats(inputs.rewards, inputs.group_ids)
    scores = masked(inputs.rewards.double() - stats.mean, ~stats.tied)
    return AdvantageOutputs(rewards_to_go(scores, inputs))
