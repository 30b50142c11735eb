"""Which ranks share an engine, how they exchange prompts, and which prompts get log-probs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lightrft.distributed.collectives import rank, world_size
from lightrft.rollout.base import LogprobChoice

SAMPLED_SHARE = 16  # `--rollout_logprobs sample`: every 16th prompt, and at least one


class EngineGroup:
    """`size` consecutive ranks with one engine between them; the number of ranks must be a multiple.

    `patience` is how long a rank waits for the others of its group: they meet after each generation.
    Collective: every rank builds it, with the same size.
    """

    def __init__(self, size: int = 1, patience: timedelta = timedelta(hours=2)) -> None:
        self.size = size
        self.index = rank() // size
        self.position = rank() % size
        self._processes: dist.ProcessGroup | None = None
        if size > 1:
            # Prompts and responses are Python lists: they travel over the host, whatever the GPUs use.
            for start in range(0, world_size(), size):
                ranks = list(range(start, start + size))
                processes = dist.new_group(ranks, backend="gloo", timeout=patience)
                if rank() in ranks:
                    self._processes = processes

    @property
    def is_leader(self) -> bool:
        return self.position == 0

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of each rank of the group, in rank order, on all of them. Collective."""
        if self._processes is None:
            return [value]
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value, group=self._processes)
        return out


def wants_logprobs(choice: LogprobChoice, num_prompts: int, seed: int) -> list[bool]:
    """For each of `num_prompts` prompts: should the engine return log-probs of its samples?

    A sample takes every `SAMPLED_SHARE`-th one, starting at a place that `seed` chooses.
    """
    if choice != "sample":
        return [choice == "all"] * num_prompts
    step = min(SAMPLED_SHARE, max(1, num_prompts))
    return [i % step == seed % step for i in range(num_prompts)]
