"""CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): the clipped ratio as a weight, never as a gate.

-sg(clip(p, 1 - low, 1 + high)) A logprob: a token outside the range keeps a gradient, with a bounded weight.
"""

from __future__ import annotations

from lightrft.algorithms.losses._common import LossOptions, log_ratio, share
from lightrft.algorithms.masking import masked
from lightrft.types import LossInputs, LossOutputs


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`."""
    mask = inputs.response_mask
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, mask).exp().detach()
    weight = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    metrics = {
        "clip_fraction_high": share(ratio > 1 + options.clip_high, mask),
        "clip_fraction_low": share(ratio < 1 - options.clip_low, mask),
    }
    return LossOutputs(-weight * inputs.advantages * masked(inputs.logprobs, mask), metrics)
