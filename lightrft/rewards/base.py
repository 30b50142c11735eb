"""What a reward is: rules and user functions are, and whatever else gives scores will be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightrft.types import Prompt, RewardResult, Rollout


@dataclass(frozen=True)
class ReferenceProblem:
    """A row that cannot be graded. Example: `ReferenceProblem(3, "train.jsonl:4", "gsm8k: no number")`."""

    index: int  # Prompt.index
    source: str  # Prompt.source
    reason: str


class Reward(Protocol):
    """Scores responses. All ranks call it together, with any number of rollouts each: the ranks of a sharded
    reward model meet there. Other rewards are local to a rank.
    """

    name: str

    def __call__(self, rollouts: Sequence[Rollout]) -> RewardResult:
        """One reward, status and value of each part per rollout, in their order, for any number of rollouts.

        `None` (status "error" or "timeout") excludes a sample; nothing that goes wrong becomes 0.

        Raises:
            RewardError: the source as a whole fails, so that no score can be trusted.
        """

    def check_references(self, prompts: Sequence[Prompt]) -> list[ReferenceProblem]:
        """Rows that this reward cannot grade, found before training; at most one problem a row."""

    def close(self) -> None:
        """End what the reward has started (processes, connections)."""
