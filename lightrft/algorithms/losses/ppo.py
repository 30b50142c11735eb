"""PPO's clipped surrogate (arXiv 1707.06347, eq. 7), with DAPO's wider upper bound and the dual clip.

Loss of a token with ratio p and advantage A: -min(p A, clip(p, 1 - low, 1 + high) A); for A < 0 the dual
clip c (arXiv 1912.09729, eq. 5) caps it at c |A|. Clip .2: p 1.5, A 1 -> -1.2; p 5, A -1 -> 5, with dual
clip 3 -> 3.
"""

from __future__ import annotations

import torch

from lightrft.algorithms.losses._common import LossOptions, clipped_surrogate, log_ratio, share
from lightrft.types import LossInputs, LossOutputs


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`, `dual_clip_fraction`."""
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.response_mask).exp()
    outputs = clipped_surrogate(ratio, inputs, options)
    if options.dual_clip == 0:
        return outputs
    cap = -options.dual_clip * inputs.advantages
    capped = (inputs.advantages < 0) & (outputs.token_losses > cap)
    share_capped = {"dual_clip_fraction": share(capped, inputs.response_mask)}
    return LossOutputs(torch.where(capped, cap, outputs.token_losses), outputs.metrics | share_capped)
