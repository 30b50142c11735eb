"""Forward passes over a whole experience, for log-probs and values that carry no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightrft.data.batching import forward_order, micro_batches
from lightrft.types import Experience


@torch.no_grad()
def score_tokens(
    score: Callable[[Experience], Tensor],
    experience: Experience,
    micro_batch_size: int,
    device: torch.device | str,
) -> Tensor:
    """What `score` says of each token, `[B, T]` float32 on the CPU, in the experience's order.

    `score` gets micro-batches of rows of like length on `device`, trimmed to their longest: `[b, T']` in,
    `[b, T']` out. The result does not depend on how they are cut.
    """
    return score_tokens_each(lambda part: [score(part)], experience, micro_batch_size, device)[0]


@torch.no_grad()
def score_tokens_each(
    score: Callable[[Experience], Sequence[Tensor]],
    experience: Experience,
    micro_batch_size: int,
    device: torch.device | str,
) -> list[Tensor]:
    """The same for several values of each token from one forward pass."""
    out: list[Tensor] = []
    for rows in micro_batches(forward_order(experience.attention_mask), micro_batch_size):
        part = experience.select(rows).to(device)
        for i, values in enumerate(score(part)):
            if i == len(out):
                out.append(torch.zeros(experience.response_mask.shape))
            out[i][rows, : part.input_ids.shape[1]] = values.float().cpu()
    return out
