"""What policy losses share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightrft.algorithms.masking import masked, masked_sum

# Log-ratios beyond this are clamped before exp: exp(20) is 5e8, far outside any clip range, and finite.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossOptions:
    """The flags that losses read: `--clip_range`, `--clip_range_higher`, `--dual_clip` (0: off)."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log pi / pi_old of each token `[B, T]`, 0 where masked, within +-`MAX_LOG_RATIO`."""
    return masked(logprobs - old_logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def share(condition: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of a bool `[B, T]` over response tokens, for a metric."""
    return masked_sum(condition.float(), mask), mask.float().sum()
