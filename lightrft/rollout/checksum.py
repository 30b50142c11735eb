"""Does the engine hold what was sent? Hashes of the bits of weights that survive an engine's rearranging.

Engines fuse projections (q, k, v in one matrix), shard them over ranks and pad vocabularies with zeros. The
hash of a tensor is the sum, modulo 2^64, of a mixed value of each element's bits: order, fusing and sharding
leave the sum alone, a zero adds nothing, and any other bit that differs changes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

MASK = (1 << 64) - 1
CHUNK = 1 << 24  # elements at a time: the mixing needs 8 bytes for each
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd constants of splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit numbers.
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_KEYS_AND_VALUES = ("k_proj", "v_proj", "key", "value")
_LAYER = re.compile(r"^(.*?layers\.\d+\.)")


@torch.no_grad()
def bit_hash(tensor: Tensor) -> Tensor:
    """The hash of a tensor of any dtype and shape, an int64 scalar on its device."""
    bits = tensor.detach().reshape(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), CHUNK):
        x = bits[start : start + CHUNK].to(torch.int64) * _MIX_1
        x = (x ^ (x >> 27)) * _MIX_2
        total = total + (x ^ (x >> 31)).sum()
    return total


def hash_all(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Name -> hash modulo 2^64. One wait for the device, at the end."""
    hashes = {name: bit_hash(tensor) for name, tensor in parameters}
    values = torch.stack(list(hashes.values())).tolist() if hashes else []
    return {name: value & MASK for name, value in zip(hashes, values, strict=True)}


def differences(
    sent: Mapping[str, int],
    held: Sequence[Mapping[str, int]],
    packed: Mapping[str, Sequence[str]],
    kv_copies: int = 1,
) -> list[str]:
    """Names of what the engine holds otherwise than it was sent; [] where all is well.

    `held` has one mapping for each rank of a tensor-parallel group. `packed` names the parts of the engine's
    fused modules (`{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}`). `kv_copies` is how many ranks share a
    key-value head where there are more ranks than heads.

    Parameters that the names do not match to each other are compared by layer.
    """
    names = set().union(*held)
    key_of = {name: _key(name, names, packed) for name in sent}
    expected: dict[str, int] = defaultdict(int)
    replicated: dict[str, int] = defaultdict(int)  # the share of it that key-value heads have
    for name, value in sent.items():
        expected[key_of[name]] += value
        if any(part in _KEYS_AND_VALUES for part in name.split(".")):
            replicated[key_of[name]] += value
    _add_tied_head(expected, sent, names)
    exact = set(expected) & names
    totals = [_totals(mapping, exact) for mapping in held]
    keys = list(dict.fromkeys([*expected, *(k for t in totals for k in t)]))
    return [
        key
        for key in keys
        if not _agrees(expected[key], replicated[key] * (kv_copies - 1), [t.get(key, 0) for t in totals])
    ]


def _agrees(sent: int, more: int, held: list[int]) -> bool:
    """Replicated on every rank, or sharded over them, perhaps with key-value heads several times."""
    if all(value & MASK == sent & MASK for value in held):
        return True
    return sum(held) & MASK in (sent & MASK, (sent + more) & MASK)


def _key(name: str, names: set[str], packed: Mapping[str, Sequence[str]]) -> str:
    """The engine's parameter that `name` went into, or its layer where no name fits."""
    fused = {part: whole for whole, parts in packed.items() for part in parts if part != whole}
    candidate = ".".join(fused.get(part, part) for part in name.split("."))
    return next((n for n in (candidate, name) if n in names), _layer(name))


def _layer(name: str) -> str:
    found = _LAYER.match(name)
    return f"{found.group(1)}*" if found else "*"


def _totals(mapping: Mapping[str, int], exact: set[str]) -> dict[str, int]:
    """Hashes by parameter where the names are known, by layer otherwise."""
    totals: dict[str, int] = defaultdict(int)
    for name, value in mapping.items():
        totals[name if name in exact else _layer(name)] += value
    return totals


def _add_tied_head(expected: dict[str, int], sent: Mapping[str, int], names: set[str]) -> None:
    """A head that is tied in the trainer is sent once, as the embedding; an engine may keep two copies."""
    for head in [n for n in names if n.endswith("lm_head.weight") and n not in expected]:
        embedding = next(
            (value for name, value in sent.items() if name.endswith("embed_tokens.weight")), None
        )
        if embedding is not None:
            expected[head] = embedding
