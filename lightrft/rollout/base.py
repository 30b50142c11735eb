"""What a rollout engine is: something that samples responses with the policy's current weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lightrft.distributed.strategy import TrainableModel
from lightrft.types import Prompt, Rollout


@dataclass(frozen=True)
class SamplingOptions:
    """How to sample. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave the distribution whole."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    first_token_temperature: float | None = None  # FIRE (arXiv 2410.21236): hotter for one token, then not
    max_new_tokens: int = 2048
    max_len: int = 4096  # prompt + response; the smaller of the two limits holds
    seed: int = 0  # with the prompt's index and the sample's number, decides every draw

    def for_rollout(self, number: int) -> SamplingOptions:
        """The same options with the seed of the run's `number`-th rollout: no two rollouts draw alike."""
        return replace(self, seed=self.seed * 1_000_003 + number)


class RolloutEngine(Protocol):
    """An engine beside, or inside, the training process. Calls are collective where ranks share an engine."""

    policy_version: int

    def generate(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[Rollout]:
        """`len(prompts) * n` rollouts, prompt-major: the n samples of a prompt stand together, in order."""

    def wake(self) -> None:
        """Take the memory that generating needs."""

    def sleep(self) -> None:
        """Give it back. `generate` must not be called before `wake`."""

    def sync_weights(self, policy: TrainableModel) -> None:
        """Hold the weights of `policy` from now on; `policy_version` rises by one."""
