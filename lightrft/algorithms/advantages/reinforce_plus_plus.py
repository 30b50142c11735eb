"""REINFORCE++ (arXiv 2501.03262): the return, with the KL in the reward, whitened over the batch."""

from __future__ import annotations

from lightrft.algorithms.advantages._common import AdvantageInputs, AdvantageOutputs, rewards_to_go

NEEDS_GROUPS = False
NEEDS_CRITIC = False
WHITENS = True
KL_IN_REWARD = True  # also where --use_kl_loss puts it into the loss


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """The discounted reward to come of each token, `[B, T]`, before whitening."""
    return AdvantageOutputs(rewards_to_go(inputs.rewards, inputs))
