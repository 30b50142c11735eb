"""Off-policy correction between the engine that sampled and the trainer that learns, and their gap.

Both run the same weights in different code: precision, kernels and batches differ. The weight
w = exp(old - rollout) makes the trainer's gradient that of its own policy (truncated importance sampling).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lightrft.algorithms.masking import masked, masked_max, masked_sum

CorrectionMode = Literal["none", "token", "sequence", "mask"]

# A response's gap is a sum over its tokens and can be hundreds: exp(20) is far above any cap, and finite.
MAX_LOG_WEIGHT = 20.0


def known_tokens(rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Response tokens for which the engine gave a log-prob, bool `[B, T]`."""
    return mask.bool() & ~rollout_logprobs.isnan()


def correction_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, mode: CorrectionMode, cap: float
) -> Tensor:
    """A weight for each token's policy loss, `[B, T]`, without gradient.

    - `token`: w of the token, at most `cap`;
    - `sequence`: exp of the response's summed gap, at most `cap`, for all of its tokens;
    - `mask`: 1 where w lies within [1 / cap, cap], 0 outside;
    - `none`: 1.

    A token without a log-prob by the engine (NaN) has no gap: it weighs 1 and adds nothing to its sequence.
    """
    known = known_tokens(rollout_logprobs, mask)
    gap = masked(old_logprobs - rollout_logprobs, known).detach()
    if mode == "sequence":
        gap = gap.sum(-1, keepdim=True).expand_as(gap)
    weight = gap.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp()
    if mode == "none":
        return torch.ones_like(weight)
    if mode == "mask":
        return ((weight >= 1 / cap) & (weight <= cap)).to(weight.dtype)
    return weight.clamp(max=cap)


def _own(x: Tensor) -> Tensor:
    return x


def gap_metrics(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    cap: float = 2.0,
    reduce_sum: Callable[[Tensor], Tensor] = _own,
) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """(sum, count) of each measure over the tokens with a log-prob by the engine; and the largest gap.

    - `logprob_gap_mean`: |old - rollout|;
    - `gap_kl`: KL(rollout || old), estimated from the engine's samples as w - 1 - log w;
    - `capped_share`: tokens with w above `cap`;
    - `effective_sample_share`: (sum w)**2 / (n sum w**2), how many samples the weighted ones are worth, over
      all ranks: `reduce_sum` adds a tensor over them (by default this rank's tokens are all there are).
    """
    known = known_tokens(rollout_logprobs, mask)
    count = known.double().sum()
    gap = masked(old_logprobs - rollout_logprobs, known).double()
    log = gap.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
    weight = masked(log.exp(), known)
    n, total, squares = reduce_sum(torch.stack([count, weight.sum(), weight.square().sum()]))
    effective = total.square() / (n * squares).clamp(min=1e-12)
    sums = {
        "logprob_gap_mean": (gap.abs().sum(), count),
        "gap_kl": (masked_sum(log.exp() - 1 - gap, known), count),
        "capped_share": ((weight > cap).double().sum(), count),
        "effective_sample_share": (effective * count, count),
    }
    return sums, masked_max(gap.abs(), known)
