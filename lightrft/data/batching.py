"""From rollouts to padded tensors; how a rank's samples are cut into optimizer steps and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lightrft.types import Experience, Prompt, RewardResult, Rollout

NAN = float("nan")


def collate(
    rollouts: Sequence[Rollout],
    result: RewardResult,
    pad_token_id: int,
    features: Callable[[Prompt], dict[str, Tensor]] | None = None,
) -> Experience:
    """Right-padded `[B, T]` tensors from B rollouts and their rewards, in the rollouts' order.

    The response mask comes from lengths, never from comparing ids: a pad id inside a response is a token like
    any other. A rollout whose reward is None keeps its row, so that shapes and counts agree on all ranks, but
    its response mask is 0: it trains nothing and counts nowhere. `features` gives what the model takes of a
    prompt besides its tokens; the samples of a prompt share it.
    """
    length = max(len(r.prompt.token_ids) + len(r.token_ids) for r in rollouts)
    batch = len(rollouts)
    input_ids = torch.full((batch, length), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros(batch, length, dtype=torch.long)
    response_mask = torch.zeros(batch, length)
    rollout_logprobs = torch.full((batch, length), NAN)
    for i, (rollout, reward) in enumerate(zip(rollouts, result.rewards, strict=True)):
        start = len(rollout.prompt.token_ids)
        end = start + len(rollout.token_ids)
        input_ids[i, :end] = torch.tensor(rollout.prompt.token_ids + rollout.token_ids)
        attention_mask[i, :end] = 1
        if reward is not None:
            response_mask[i, start:end] = 1
        if rollout.logprobs is not None:
            rollout_logprobs[i, start:end] = torch.tensor(rollout.logprobs)
    return Experience(
        input_ids=input_ids,
        attention_mask=attention_mask,
        response_mask=response_mask,
        group_ids=torch.tensor(group_ids(rollouts)),
        rewards=torch.tensor([NAN if r is None else r for r in result.rewards]),
        policy_version=torch.tensor([r.policy_version for r in rollouts]),
        rollout_logprobs=rollout_logprobs,
        multimodal=[{} if features is None else features(r.prompt) for r in rollouts],
    )


def group_ids(rollouts: Sequence[Rollout]) -> list[int]:
    """A number for each run of one prompt's samples. The same row drawn twice in a step makes two groups."""
    ids: list[int] = []
    for i, rollout in enumerate(rollouts):
        new = i == 0 or rollout.sample_index == 0 or rollout.prompt.index != rollouts[i - 1].prompt.index
        ids.append((ids[-1] if ids else -1) + int(new))
    return ids


def step_slices(num_local_samples: int, local_train_batch_size: int) -> Iterator[range]:
    """The local samples of each optimizer step, in order.

    Ranks hold strided shares of the prompts, so slice k of every rank together is the k-th part of the
    rollout whatever the number of ranks, as long as a rank's part holds whole groups. Prompts come shuffled:
    the order within a rollout needs no shuffle of its own.
    """
    for start in range(0, num_local_samples, local_train_batch_size):
        yield range(start, min(start + local_train_batch_size, num_local_samples))


def micro_batches(indices: Sequence[int], size: int) -> Iterator[list[int]]:
    """`indices` in pieces of `size`; the last may be shorter."""
    for start in range(0, len(indices), size):
        yield list(indices[start : start + size])


def forward_order(attention_mask: Tensor) -> list[int]:
    """Rows by length, longest first: like lengths pad least, and memory peaks at the start."""
    lengths = attention_mask.sum(-1)
    return torch.argsort(lengths, descending=True, stable=True).tolist()
