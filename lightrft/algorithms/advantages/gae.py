"""Generalised advantage estimation (arXiv 1506.02438, eq. 16), with a critic.

delta_t = R_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, over response tokens only;
returns are A + V. r [0, 0, 1], V [.5, .6, .7], gamma 1, lambda .95 -> A [.4657, .385, .3].
"""

from __future__ import annotations

import torch

from lightrft.algorithms.advantages._common import (
    AdvantageInputs,
    AdvantageOutputs,
    included,
    token_rewards_with_score,
)
from lightrft.algorithms.masking import masked

NEEDS_GROUPS = False
NEEDS_CRITIC = True
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """Advantages and returns `[B, T]`; a masked token in the middle is skipped, as if it were not there.

    `values[:, t]` is V of the state in which token t is chosen; after the last token it is 0.
    """
    if inputs.values is None:
        raise ValueError("gae needs the critic's values")
    mask = inputs.response_mask.bool()
    rewards = token_rewards_with_score(inputs.rewards, inputs)
    values = masked(inputs.values, mask)
    advantages = torch.zeros_like(rewards)
    next_value, next_advantage = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + inputs.gamma * next_value - values[:, t]
        advantage = delta + inputs.gamma * inputs.lambd * next_advantage
        here = mask[:, t]
        advantages[:, t] = masked(advantage, here)
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    advantages = masked(advantages, included(inputs))
    return AdvantageOutputs(advantages, masked(advantages + values, mask))
