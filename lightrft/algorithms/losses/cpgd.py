"""CPGD's clipped policy gradient with policy drift (arXiv 2505.12504).

-A x clipped log-prob: capped at old + log(1 + high) for A > 0, floored at old + log(1 - low) otherwise; the
ratio itself never multiplies the gradient, which is what keeps it stable. lp -1, old -1.5, .2: A 1 ->
1.31768, A -1 -> -1.

The drift term adds coefficient x KL(old || policy), estimated without bias from old samples as
p - 1 - log p of the ratio p. Its gradient is (p - 1) times that of the log-prob; the weight is capped, so
that one far-off token cannot dominate (below, it is at least -1 by itself). The coefficient is
`--kl_target`.
"""

from __future__ import annotations

import math

import torch

from lightrft.algorithms.losses._common import LossOptions, log_ratio, share
from lightrft.algorithms.masking import masked, masked_sum
from lightrft.types import LossInputs, LossOutputs

MAX_DRIFT_WEIGHT = 2.0


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`, `drift`."""
    mask = inputs.response_mask
    logprobs, old = masked(inputs.logprobs, mask), masked(inputs.old_logprobs, mask)
    cap = old + math.log1p(options.clip_high)
    floor = old + math.log1p(-options.clip_low)
    rewarded = inputs.advantages > 0
    clipped = torch.where(rewarded, torch.minimum(logprobs, cap), torch.maximum(logprobs, floor))
    log = log_ratio(inputs.logprobs, inputs.old_logprobs, mask)
    drift = log.exp() - 1 - log
    weight = (log.exp() - 1).clamp(max=MAX_DRIFT_WEIGHT).detach()
    losses = -inputs.advantages * clipped
    if options.drift_coef:
        # The value of the drift, with the capped gradient.
        losses = losses + options.drift_coef * (drift.detach() + weight * (logprobs - logprobs.detach()))
    metrics = {
        "clip_fraction_high": share(rewarded & (logprobs > cap), mask),
        "clip_fraction_low": share((inputs.advantages < 0) & (logprobs < floor), mask),
        "drift": (masked_sum(drift.detach(), mask), mask.float().sum()),
    }
    return LossOutputs(losses, metrics)
