"""The critic's clipped loss (arXiv 1707.06347; the clip as in the PPO authors' own code)."""

from __future__ import annotations

import torch
from torch import Tensor

from lightrft.algorithms.losses._common import share
from lightrft.algorithms.masking import masked


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Half the larger of (V - R)**2 and (clip(V, V_old +- value_clip) - R)**2 of each token `[B, T]`.

    Also returns (sum, count) of the tokens in which the clipped one is larger, where the gradient stops.
    """
    values, old_values, returns = (masked(x, mask) for x in (values, old_values, returns))
    clipped = old_values + (values - old_values).clamp(-value_clip, value_clip)
    plain, bounded = (values - returns).square(), (clipped - returns).square()
    return 0.5 * torch.maximum(plain, bounded), share(bounded > plain, mask)
