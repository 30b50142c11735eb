"""GSPO (arXiv 2507.18071, eq. 5 to 7, and its token form, eq. 13): one ratio for the whole response.

s = exp(mean_t(logprob - old)). This is the token form: each token's ratio has the value s and its gradient
through its own log-prob, so that where advantages are constant over a response, and its tokens are averaged,
the gradient is that of the sequence form. Log-ratios [.1, .3] -> 1.2214 for both tokens. Such ratios are
close to 1: the paper clips at 3e-4 and 4e-4, far below ppo's ranges.
"""

from __future__ import annotations

import torch

from lightrft.algorithms.losses._common import LossOptions, clipped_surrogate, log_ratio
from lightrft.algorithms.masking import masked
from lightrft.types import LossInputs, LossOutputs


def sequence_ratio(inputs: LossInputs) -> torch.Tensor:
    """Value exp(mean log-ratio) of each row in all its tokens `[B, T]`, gradient through each token's own."""
    mask = inputs.response_mask
    log = log_ratio(inputs.logprobs, inputs.old_logprobs, mask)
    mean = log.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    own = masked(inputs.logprobs, mask)
    return (mean.detach() + (own - own.detach())).exp()


def compute(inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """Token losses `[B, T]`; metrics `clip_fraction_high`, `clip_fraction_low`, in tokens."""
    return clipped_surrogate(sequence_ratio(inputs), inputs, options)
