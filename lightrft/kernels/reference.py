"""The oracle: log-probs of a linear head with all logits in memory, as one would write them down."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100  # a target that asks for nothing, as in torch's cross_entropy
UNDERFLOWS = -1e4  # exp of it is 0 in float64, too


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the arithmetic is done in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def eager_logprob(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `linear_logprob`. Holds several copies of `[N, V]`; autograd differentiates it."""
    dtype = compute_dtype(weight.dtype)
    asked = target != IGNORED
    # A row that nobody asked for may hold anything, NaN too, and must not reach the gradient.
    rows = torch.where(asked[:, None], hidden, 0).to(dtype)
    logits = rows @ weight.to(dtype).T
    if bias is not None:
        logits = logits + bias.to(dtype)
    logp = (logits / temperature).log_softmax(-1)
    chosen = logp.gather(-1, target.where(asked, 0)[:, None]).squeeze(-1)
    entropy = None
    if with_entropy:
        # exp(-inf) is 0, and 0 x -inf is not: the product is what it tends to.
        entropy = -(logp.exp() * logp.clamp(min=UNDERFLOWS)).sum(-1)
        entropy = torch.where(asked, entropy, 0)
    return torch.where(asked, chosen, 0), entropy
