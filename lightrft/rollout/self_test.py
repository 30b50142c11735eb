"""Seconds at the start that prove what a run relies on: the engine samples from the trainer's weights.

     generate ─► same log-probs ─► sleep ─► sync one changed tensor, wake ─► other log-probs
                                   sleep ─► sync the true weights, wake ─► same log-probs again

The changed tensor is the input embedding, its rows moved by one: every token then means another, in all
layers. It travels as every weight does, so what is proven is the path: names, dtypes, tied heads, sharding,
caches of old keys and values, memory that was given back and taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from lightrft.distributed.strategy import Weights
from lightrft.errors import EngineError
from lightrft.rollout.base import RolloutEngine, SamplingOptions
from lightrft.types import Prompt, Rollout

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 40, 8  # longer than a KV cache block (16 or 32), so that it is cached

Gap = Callable[[Sequence[Rollout]], float]


@dataclass(frozen=True)
class SelfTestResult:
    """Mean |trainer - engine| of the sampled log-probs: first, with the tensor changed, at the end."""

    before: float
    changed: float
    after: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"gap {self.before:.1e}, with one tensor changed {self.changed:.1e}, changed back "
            f"{self.after:.1e} ({self.seconds:.1f} s)"
        )


class _OneTensorChanged:
    """The weights of `policy`, but with the rows of the parameter `name` moved by one."""

    def __init__(self, policy: Weights, name: str) -> None:
        self.policy = policy
        self.name = name

    def parameter_buckets(self, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
        for bucket in self.policy.parameter_buckets(max_bytes):
            yield [(name, tensor.roll(1, 0) if name == self.name else tensor) for name, tensor in bucket]


def run_self_test(
    engine: RolloutEngine,
    policy: Weights,
    embedding: str,
    gap: Gap,
    limits: tuple[float, float],
    max_len: int,
    who: str,
    banned: Collection[int] = (),
) -> SelfTestResult:
    """Leaves the engine awake, with the true weights. Collective.

    `embedding` is the policy's name for the weight of its input embedding. `gap` gives the mean gap between
    the trainer's and the engine's log-probs of some rollouts, the same on all ranks. Of the two `limits`,
    rounding stays below the second, and other weights go above the first. `max_len` is
    the longest sequence that the engine takes; `who` names it and its version. Prompts are of text, without
    the `banned` tokens.

    Raises:
        EngineError: a step failed; the message names it.
    """
    began, version = time.monotonic(), engine.policy_version
    length = min(PROMPT_TOKENS, max_len // 2)
    usable = [token for token in range(5, 95) if token not in banned]
    prompts = [
        Prompt(i, [usable[(7 * i + 3 * k) % len(usable)] for k in range(length)], "") for i in range(PROMPTS)
    ]
    options = SamplingOptions(n=2, max_new_tokens=min(NEW_TOKENS, max_len // 2), max_len=max_len)
    engine.wake()
    before = gap(engine.generate(prompts, options))
    expected, max_gap = limits
    _expect(before <= max_gap, "generating with the first weights", before, max_gap, who)
    changed = gap(_next_round(engine, _OneTensorChanged(policy, embedding), prompts, options))
    floor = max(expected, 3 * before)
    _expect(changed > floor, f"a sync with {embedding} changed", changed, floor, who)
    after = gap(_next_round(engine, policy, prompts, options))
    _expect(after <= max_gap, "a sync back to the true weights", after, max_gap, who)
    engine.policy_version = version
    return SelfTestResult(before, changed, after, time.monotonic() - began)


def _next_round(
    engine: RolloutEngine, weights: Weights, prompts: list[Prompt], options: SamplingOptions
) -> list[Rollout]:
    engine.sleep()
    engine.sync_weights(weights)
    engine.wake()
    return engine.generate(prompts, options)


def _expect(holds: bool, step: str, gap: float, limit: float, who: str) -> None:
    if not holds:
        relation = "above" if gap > limit else "not above"
        raise EngineError(
            f"engine self-test: {who} failed at: {step}. The mean gap between its log-probs and the "
            f"trainer's is {gap:.3g}, {relation} {limit:.3g}: it would sample from other weights than are "
            "trained. Use another version of the engine or --engine_type hf; --no_engine_self_test skips the "
            "test, not the fault"
        )
