"""Which prompts come when. Every rank computes the same order, from two numbers; no global random state is
used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from lightrft.errors import CheckpointError, ConfigError

T = TypeVar("T")


class PromptSampler:
    """Batches of prompt indices over all ranks, in an order that `(seed, episode)` decides.

    A last batch that is not full is left out of its episode. `episode` counts finished passes and `position`
    the batches already given in this one; both move when a batch is handed out, so that a state saved after
    training on it resumes with the next. The episode turns over with its last batch, never one call later.
    """

    def __init__(self, num_prompts: int, batch_size: int, seed: int, shuffle: bool = True):
        if num_prompts < batch_size:
            raise ConfigError(
                f"there are {num_prompts} prompts and a batch takes {batch_size}: use --rollout_batch_size "
                f"{num_prompts} or less, or more data"
            )
        self._num_prompts = num_prompts
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._order: list[int] = []
        self._ordered_episode: int | None = None
        self.episode = 0
        self.position = 0

    def __len__(self) -> int:
        """Batches per episode."""
        return self._num_prompts // self._batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """The batches that are left of this episode."""
        episode = self.episode
        while self.episode == episode:
            yield self.next_batch()

    def next_batch(self) -> list[int]:
        """The next `batch_size` indices; after the last batch of an episode comes the first of the next."""
        start = self.position * self._batch_size
        batch = self._episode_order()[start : start + self._batch_size]
        self.position += 1
        if self.position == len(self):
            self.episode, self.position = self.episode + 1, 0
        return batch

    def _episode_order(self) -> list[int]:
        if self._ordered_episode != self.episode:
            self._order = list(range(self._num_prompts))
            if self._shuffle:
                random.Random(f"prompts/{self._seed}/{self.episode}").shuffle(self._order)
            self._ordered_episode = self.episode
        return self._order

    def state_dict(self) -> dict[str, int | bool]:
        """All that the order depends on, and how far it has come."""
        return self._identity() | {"episode": self.episode, "position": self.position}

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        """Go on where `state` was taken.

        Raises:
            CheckpointError: it belongs to other data, another batch size or seed; each difference is named.
        """
        differences = [
            f"{name} was {state.get(name)} and is {value}"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if differences:
            raise CheckpointError(f"the order of the prompts cannot be resumed: {'; '.join(differences)}")
        self.episode, self.position = int(state["episode"]), int(state["position"])

    def _identity(self) -> dict[str, int | bool]:
        return {
            "num_prompts": self._num_prompts,
            "batch_size": self._batch_size,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }


def rank_share(items: Sequence[T], rank: int, world: int) -> Sequence[T]:
    """Every `world`-th item from number `rank` on: together the ranks have each item once."""
    return items[rank::world]


def eval_batches(num_rows: int, batch_size: int, rank: int, world: int) -> list[list[int]]:
    """The rows that `rank` evaluates, `batch_size` at a time.

    Every row is on one rank, once. All ranks have the same number of batches, so that collective calls in
    them pair up; the last ones of a rank may be short or empty.
    """
    longest_share = -(-num_rows // world)
    share = list(rank_share(range(num_rows), rank, world))
    return [share[start : start + batch_size] for start in range(0, longest_share, batch_size)]
