"""GRPO (arXiv 2402.03300, eq. 3, section 4.1.2): a reward is judged against the other answers to its prompt.

Scalar stage (r - mean) / (std + 1e-6) with the unbiased std; `--no_group_std` gives Dr.GRPO's r - mean
(arXiv 2503.20783). Rewards [1, 0, 0, 0] -> [1.5, -.5, -.5, -.5]. A tied group has advantage exactly 0.
"""

from __future__ import annotations

from lightrft.algorithms.advantages._common import (
    AdvantageInputs,
    AdvantageOutputs,
    normalised_in_group,
    rewards_to_go,
)

NEEDS_GROUPS = True
NEEDS_CRITIC = False
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """The normalised reward, plus what `token_rewards` still brings after each token, `[B, T]`."""
    return AdvantageOutputs(rewards_to_go(normalised_in_group(inputs), inputs))
