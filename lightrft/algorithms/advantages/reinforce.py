"""REINFORCE: the return itself, A_t = R_t + gamma A_{t+1} (Williams, 1992). No baseline: high variance."""

from __future__ import annotations

from lightrft.algorithms.advantages._common import AdvantageInputs, AdvantageOutputs, rewards_to_go

NEEDS_GROUPS = False
NEEDS_CRITIC = False
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """The discounted reward to come of each token, `[B, T]`."""
    return AdvantageOutputs(rewards_to_go(inputs.rewards, inputs))
