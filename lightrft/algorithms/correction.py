"""Off-policy correction between the engine that sampled and the trainer that learns, and their gap.

Both run the same weights in different code: precision, kernels and batches differ. The weight
exp(old - rollout) makes the trainer's gradient that of its own policy (truncated importance sampling).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightrft.algorithms.masking import masked, masked_max, masked_sum

CorrectionMode = Literal["none", "token", "sequence", "mask"]
MAX_LOG_WEIGHT = 20.0


def known_tokens(rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Response tokens for which the engine gave a log-prob, bool `[B, T]`."""
    return mask.bool() & ~rollout_logprobs.isnan()


def correction_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, mode: CorrectionMode, cap: float
) -> Tensor:
    """A detached weight for each token's loss, `[B, T]`; 1 where the engine gave no log-prob.

    - `token`: exp(old - rollout), at most `cap`;
    - `sequence`: exp of the response's summed gap, at most `cap`, for all its tokens;
    - `mask`: 1 within [1 / cap, cap], 0 outside.
    """
    known = known_tokens(rollout_logprobs, mask)
    gap = masked(old_logprobs - rollout_logprobs, known).detach()
    if mode == "sequence":
        gap = gap.sum(-1, keepdim=True).expand_as(gap)
    ratio = gap.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp()
    if mode == "none":
        return torch.ones_like(ratio)
    if mode == "mask":
        return ((ratio >= 1 / cap) & (ratio <= cap)).to(ratio.dtype)
    return ratio.clamp(max=cap)


def gap_metrics(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor
) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """Sums and counts over the known tokens, and the largest gap.

    `logprob_gap_mean` |old - rollout|; `gap_kl` the k3 estimate of KL(rollout || old), from samples of the
    engine; `effective_sample_share` (sum w)**2 / (n sum w**2) of the untruncated token weights, of this
    rank's tokens, weighted by their number.
    """
    known = known_tokens(rollout_logprobs, mask)
    count = known.float().sum()
    gap = masked(old_logprobs - rollout_logprobs, known)
    weights = masked(gap.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp(), known)
    effective = weights.sum().square() / weights.square().sum().clamp(min=1e-12)
    kl = masked_sum(gap.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp() - 1 - gap, known)
    sums = {
        "logprob_gap_mean": (gap.abs().sum(), count),
        "gap_kl": (kl, count),
        "effective_sample_share": (effective, count),
    }
    return sums, masked_max(gap.abs(), known)
