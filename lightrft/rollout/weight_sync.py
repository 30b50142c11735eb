"""The trainer's weights on their way into an engine: gathered once, a bucket at a time, in its dtype.

     policy.parameter_buckets ─► name and dtype of the engine ─► load(bucket) ─► compare, when due

ZeRO 1 and 2 hold whole weights: nothing is copied unless the dtypes differ. ZeRO-3 gathers one bucket over
the ranks and lets it go before the next. So the most that a sync adds to the trainer's memory is one
bucket, or the largest parameter where that is larger: an engine takes no half tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightrft.distributed.strategy import Weights
from lightrft.errors import EngineError
from lightrft.rollout.checksum import MASK, bit_hash, differences

PREFIX = "model."  # the policy wraps the Hugging Face model under this name
SHOWN = 5  # names in a message

Bucket = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Held:
    """What an engine says of its weights: hashes by parameter for each rank that holds a part of them."""

    hashes: Sequence[Mapping[str, int]]
    packed: Mapping[str, Sequence[str]]
    kv_copies: int = 1
    rename: Callable[[str], str] = str  # from the name in a checkpoint to the engine's own


class WeightSync:
    """Sends weights in buckets, and compares what arrived at the first sync and every `check_every`-th."""

    def __init__(self, dtype: torch.dtype, bucket_bytes: int, check_every: int, engine: str) -> None:
        self.dtype = dtype
        self.bucket_bytes = bucket_bytes
        self.check_every = check_every
        self.engine = engine  # name and version, for messages
        self.count = 0
        self._names: dict[str, str] = {}

    @torch.no_grad()
    def run(self, policy: Weights, load: Callable[[Bucket], None], held: Callable[[], Held] | None) -> None:
        """Send every parameter through `load`, then ask `held` where a comparison is due. Collective.

        The tensors that `load` gets are valid until it returns.

        Raises:
            EngineError: the engine holds something else than was sent.
        """
        due = held is not None and self.check_every > 0 and self.count % self.check_every == 0
        hashes: dict[str, Tensor] = {}
        for bucket in self._buckets(policy):
            if due:
                hashes |= {name: bit_hash(tensor) for name, tensor in bucket}
            load(bucket)
            bucket.clear()  # or the loop's variable would keep it while the next one is gathered
        self.count += 1
        if due and held is not None:
            self._compare({name: int(value) & MASK for name, value in hashes.items()}, held())

    def _buckets(self, policy: Weights) -> Iterator[Bucket]:
        for bucket in policy.parameter_buckets(self.bucket_bytes):
            yield [(self._name(name), self._cast(tensor)) for name, tensor in bucket]

    def _name(self, name: str) -> str:
        """The name in a checkpoint of the model, which is what engines load."""
        return self._names.setdefault(name, name.removeprefix(PREFIX))

    def _cast(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _compare(self, sent: dict[str, int], held: Held) -> None:
        sent = {held.rename(name): value for name, value in sent.items()}
        wrong = differences(sent, held.hashes, held.packed, held.kv_copies)
        if wrong:
            shown = ", ".join(wrong[:SHOWN]) + (
                f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            )
            raise EngineError(
                f"after weight sync {self.count} the engine ({self.engine}) does not hold what was sent: "
                f"{shown}. Its samples would come from wrong weights. Use --engine_type hf, or another "
                "version of the engine; --check_weight_sync 0 turns the comparison off"
            )
