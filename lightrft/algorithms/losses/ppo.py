"""PPO's clipped surrogate (arXiv 1707.06347, eq. 7), with DAPO's wider upper bound and the dual clip.

Loss of a token with ratio p and advantage A: -min(p A, clip(p, 1 - low, 1 + high) A); for A < 0 the dual
clip c (arXiv 1912.09729, eq. 5) caps it at c |A|. Clip .2: p 1.5, A 1 -> -1.2; p 5, A -1 -> 5, with dual
clip 3 -> 3.
"""

from __future__ import annotations

import torch

from lightrft.algorithms.losses._common import LossOptions, log_ratio, share
from lightrft.types import LossInputs, LossOutputs


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`, `dual_clip_fraction`."""
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.response_mask).exp()
    advantages = inputs.advantages
    clipped = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    metrics = {
        # A bound counts as active only where it changes the gradient.
        "clip_fraction_high": share((ratio > 1 + options.clip_high) & (advantages > 0), inputs.response_mask),
        "clip_fraction_low": share((ratio < 1 - options.clip_low) & (advantages < 0), inputs.response_mask),
    }
    if options.dual_clip > 0:
        cap = -options.dual_clip * advantages
        capped = (advantages < 0) & (losses > cap)
        metrics["dual_clip_fraction"] = share(capped, inputs.response_mask)
        losses = torch.where(capped, cap, losses)
    return LossOutputs(losses, metrics)
