"""What policy losses share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightrft.algorithms.masking import masked, masked_sum
from lightrft.types import LossInputs, LossOutputs

# Log-ratios beyond this are clamped before exp: exp(20) is 5e8, far outside any clip range, and finite.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossOptions:
    """The flags that losses read."""

    clip_low: float = 0.2  # --clip_range
    clip_high: float = 0.2  # --clip_range_higher
    dual_clip: float = 0.0  # --dual_clip, for ppo; 0: off
    drift_coef: float = 0.0  # --kl_target, for cpgd: the weight of its drift term


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log pi / pi_old of each token `[B, T]`, 0 where masked, within +-`MAX_LOG_RATIO`."""
    return masked(logprobs - old_logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def share(condition: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of a bool `[B, T]` over response tokens, for a metric."""
    return masked_sum(condition.float(), mask), mask.float().sum()


def clipped_surrogate(ratio: Tensor, inputs: LossInputs, options: LossOptions) -> LossOutputs:
    """-min(p A, clip(p, 1 - low, 1 + high) A) of each token `[B, T]`, for whatever `ratio` p means.

    Metrics `clip_fraction_high`, `clip_fraction_low`: a bound counts as active only where it stops the
    gradient.
    """
    advantages, mask = inputs.advantages, inputs.response_mask
    clipped = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    metrics = {
        "clip_fraction_high": share((ratio > 1 + options.clip_high) & (advantages > 0), mask),
        "clip_fraction_low": share((ratio < 1 - options.clip_low) & (advantages < 0), mask),
    }
    return LossOutputs(losses, metrics)
