"""Estimators of KL(policy || reference) from log-probs of sampled tokens, and the coefficient's controller.

Source: J. Schulman, "Approximating KL divergence" (2020), with x = logprob - ref_logprob of a sampled token.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]

# exp(20) is 5e8: large enough to shout, small enough to stay finite in float32 after squaring and summing.
MAX_EXPONENT = 20.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """KL of each token, the shape of `logprobs`; 0 where both agree.

    - `k1` = x: unbiased, may be negative, its gradient as a loss has mean zero;
    - `k2` = x**2 / 2: biased, never negative; as a loss its gradient is that of the true KL;
    - `k3` = exp(-x) - 1 + x: unbiased, never negative.

    logprob -1, reference -1.5: .5, .125, .106531.
    """
    x = logprobs - ref_logprobs
    if estimator == "k1":
        return x
    if estimator == "k2":
        return x.square() / 2
    return torch.exp((-x).clamp(-MAX_EXPONENT, MAX_EXPONENT)) - 1 + x


class KLController(Protocol):
    """Holds the coefficient of the KL term."""

    coef: float

    def update(self, kl: float, num_samples: int) -> None:
        """Take note of the KL that `num_samples` samples of a step had."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


class FixedKLController:
    """A coefficient that stays what it was given."""

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, kl: float, num_samples: int) -> None:
        """Nothing to do: the coefficient does not follow the measured `kl`."""

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]


class AdaptiveKLController(FixedKLController):
    """Raises the coefficient while the KL lies above `target`, lowers it below (arXiv 1909.08593, eq. 3).

    Each step multiplies it by 1 + clip(kl / target - 1, +-.2) x samples / horizon. Coefficient .001, target
    .1, horizon 10000, 256 samples: KL .2 -> .00100512, KL .05 -> .00099488. More samples than the horizon
    count as the horizon: the coefficient moves by a fifth at most, and can never turn negative.
    """

    MAX_ERROR = 0.2

    def __init__(self, coef: float, target: float, horizon: int = 10000) -> None:
        super().__init__(coef)
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, num_samples: int) -> None:
        if math.isnan(kl):  # a step that was not finite says nothing of the policy
            return
        error = max(-self.MAX_ERROR, min(self.MAX_ERROR, kl / self.target - 1))
        self.coef *= 1 + error * min(1.0, num_samples / self.horizon)
