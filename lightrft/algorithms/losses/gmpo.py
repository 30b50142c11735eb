"""GMPO (arXiv 2507.20673, eq. 4): the geometric mean of token ratios, each clipped before.

s = exp(mean_t(clipped log-ratio_t)): a log-ratio is capped at log(1 + high) where the advantage is positive
and floored at log(1 - low) where it is negative. The loss -A s stands at every token of the response. The
paper clips at exp(+-.4), wider than ppo, since a geometric mean is hard to move by one token.
"""

from __future__ import annotations

import math

import torch

from lightrft.algorithms.losses._common import LossOptions, log_ratio, share
from lightrft.algorithms.masking import masked
from lightrft.types import LossInputs, LossOutputs


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`."""
    mask = inputs.response_mask
    log = log_ratio(inputs.logprobs, inputs.old_logprobs, mask)
    high, low = math.log1p(options.clip_high), math.log1p(-options.clip_low)
    rewarded, punished = inputs.advantages > 0, inputs.advantages < 0
    clipped = torch.where(rewarded, log.clamp(max=high), torch.where(punished, log.clamp(min=low), log))
    mean = masked(clipped, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    metrics = {
        "clip_fraction_high": share(rewarded & (log > high), mask),
        "clip_fraction_low": share(punished & (log < low), mask),
    }
    # Masked here and not only by the caller: the row's one ratio takes its gradient from every position.
    return LossOutputs(-masked(inputs.advantages, mask) * mean.exp(), metrics)
