"""SAPO (arXiv 2511.20347): a soft gate in the place of clipping.

f(p) = sigmoid(tau (p - 1)) 4 / tau, loss -f(p) A. At p = 1 the gradient is the policy gradient's; away from
it the gate closes smoothly on both sides, faster (larger tau) for negative advantages, whose gradients
spread over the whole vocabulary.
"""

from __future__ import annotations

import torch

from lightrft.algorithms.losses._common import LossOptions, log_ratio
from lightrft.algorithms.masking import masked_sum
from lightrft.types import LossInputs, LossOutputs

TAU_POSITIVE = 1.0
TAU_NEGATIVE = 1.05


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metric `gate`: the mean weight 4 s (1 - s) of a token's gradient, 1 at p = 1."""
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.response_mask).exp()
    tau = torch.full_like(ratio, TAU_NEGATIVE).masked_fill(inputs.advantages > 0, TAU_POSITIVE)
    gate = torch.sigmoid(tau * (ratio - 1))
    openness = (4 * gate * (1 - gate)).detach()
    metrics = {"gate": (masked_sum(openness, inputs.response_mask), inputs.response_mask.float().sum())}
    return LossOutputs(-gate * 4 / tau * inputs.advantages, metrics)
