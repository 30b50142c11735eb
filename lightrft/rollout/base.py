"""What a rollout engine is: something that samples responses with the policy's current weights.

start ─► wake ─► generate ─► sleep ─► ... the trainer trains ... ─► sync_weights ─► wake ─► generate ...
         (KV cache)          (all)                                  (weights come back)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch

from lightrft.distributed.strategy import Weights
from lightrft.errors import EngineError
from lightrft.types import FinishReason, Prompt, Rollout

LogprobChoice = Literal["all", "sample", "none"]
Response = tuple[list[int], FinishReason, list[float] | None]  # token ids, how it ended, log-probs


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
    logprobs: LogprobChoice = "all"  # responses whose log-probs are wanted; engines pay for them

    def for_rollout(self, number: int) -> SamplingOptions:
        """The same options with the seed of the run's `number`-th rollout: no two rollouts draw alike."""
        return replace(self, seed=self.seed * 1_000_003 + number)

    def room_after(self, prompt: Prompt) -> int:
        """The most tokens that a response to `prompt` may have."""
        return min(self.max_new_tokens, self.max_len - len(prompt.token_ids))


@dataclass(frozen=True)
class EngineOptions:
    """An inference engine beside the trainer, as the `--engine_*` flags describe it."""

    model: str  # folder or hub name: its config.json says what to build; the weights come from the trainer
    dtype: torch.dtype
    max_len: int
    tensor_parallel_size: int = 1
    memory_share: float = 0.5  # of the GPU: weights, activations and KV cache of the engine together
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    sleep: bool = True
    seed: int = 0
    timeout: float = 1800.0  # seconds without a finished response
    bucket_bytes: int = 512 << 20
    check_every: int = 100  # syncs between comparisons of the weights; 0: never
    trust_remote_code: bool = False
    banned_token_ids: tuple[int, ...] = ()
    media: Mapping[str, int] = field(default_factory=dict)  # most images and videos of a prompt; {} for text
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # passed through to the engine, after ours


class RolloutEngine(Protocol):
    """An engine beside, or inside, the training process. Calls are collective where ranks share an engine:
    every rank makes them, in the same order, also one that has no prompts."""

    policy_version: int  # how many syncs the weights have seen since the run began
    on_progress: Callable[[int, int], None] | None  # told (finished, all) responses while generating

    def start(self, policy: Weights) -> None:
        """Hold the weights of `policy` for the first time. Before anything else; no version is counted."""

    def generate(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[Rollout]:
        """`len(prompts) * n` rollouts, prompt-major: the n samples of a prompt stand together, in order.

        The draws depend on `options.seed`, not on what was drawn before; global generators are left alone.

        Raises:
            EngineError: out of memory, or stalled for `--engine_timeout`.
            RuntimeError: called while asleep, which is a fault of the caller.
        """

    def wake(self) -> None:
        """Take the memory that generating needs."""

    def sleep(self, weights_change: bool = True) -> None:
        """Give memory back. `generate` must not be called before `wake`.

        `weights_change` says that `sync_weights` comes before the next `wake`, so that the engine need not
        keep a copy of the weights it has.
        """

    def sync_weights(self, policy: Weights) -> None:
        """Hold the weights of `policy` from now on; `policy_version` rises by one.

        May be called asleep: an engine then takes memory for its weights alone.

        Raises:
            EngineError: what the engine holds afterwards is not what was sent.
        """

    def close(self) -> None:
        """Give everything back, for good."""


def how_it_ended(tokens: Sequence[int], reason: FinishReason, end_ids: Collection[int]) -> FinishReason:
    """`reason`, but "stop" where an end token just fitted: SGLang looks at the limit before the token."""
    return "stop" if reason == "length" and tokens and tokens[-1] in end_ids else reason


def check_prompt_ids(prompt: Prompt, seen: Sequence[int] | int, engine: str) -> None:
    """The engine prepares pictures by itself: it must have come to the token ids that the trainer has.

    `seen` are the ids, or only their number where the engine does not tell them.

    Raises:
        EngineError: it has not.
    """
    own = prompt.token_ids if not isinstance(seen, int) else len(prompt.token_ids)
    if seen != own:
        count = seen if isinstance(seen, int) else len(seen)
        raise EngineError(
            f"{prompt.source or prompt.index}: {engine} sees {count} prompt tokens where the trainer sees "
            f"{len(prompt.token_ids)}, or others: its processor prepares the images differently. Use another "
            "version of it, or --engine_type hf"
        )


def as_rollouts(
    prompts: Sequence[Prompt], responses: Sequence[Sequence[Response]], tokenizer: Any, policy_version: int
) -> list[Rollout]:
    """The samples of each prompt as rollouts, prompt-major, with their texts."""
    tokens = [ids for samples in responses for ids, _, _ in samples]
    texts = iter(tokenizer.batch_decode(tokens, skip_special_tokens=True) if tokens else [])
    return [
        Rollout(
            prompt=prompt,
            sample_index=i,
            token_ids=ids,
            text=next(texts),
            finish_reason=reason,
            logprobs=logprobs,
            policy_version=policy_version,
        )
        for prompt, samples in zip(prompts, responses, strict=True)
        for i, (ids, reason, logprobs) in enumerate(samples)
    ]
