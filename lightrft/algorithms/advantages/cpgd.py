"""CPGD (arXiv 2505.12504): the group-normalised reward, the same for every token of the response.

(r - mean) / (std + 1e-6) with the unbiased std; no discount and no KL: the drift from the old policy is
held in the loss, `--policy_loss cpgd`. A tied group has advantage exactly 0.
"""

from __future__ import annotations

from lightrft.algorithms.advantages._common import (
    AdvantageInputs,
    AdvantageOutputs,
    normalised_in_group,
    spread_over_response,
)

NEEDS_GROUPS = True
NEEDS_CRITIC = False
WHITENS = False


def compute(inputs: AdvantageInputs) -> AdvantageOutputs:
    """Constant over each response, `[B, T]`."""
    return AdvantageOutputs(spread_over_response(normalised_in_group(inputs), inputs))
