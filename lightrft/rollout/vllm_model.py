"""What is done to the model inside vLLM: its logits, its first weights, what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightrft.rollout.checksum import hash_all


def scaled(
    compute: Callable[..., Tensor | None], temperature: list[float], banned: list[int]
) -> Callable[..., Tensor | None]:
    """`compute_logits` with its result divided by what `temperature[0]` is at the time, in float32.

    The logits of `banned` tokens are the lowest there are, so that they are no part of the distribution.
    """

    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        logits = compute(*args, **kwargs)
        if logits is None:
            return None
        if temperature[0] != 1.0:
            logits = logits.float() / temperature[0]
        if banned:
            ids = torch.tensor(banned, device=logits.device)
            logits = logits.index_fill(-1, ids, torch.finfo(logits.dtype).min)
        return logits

    return compute_logits


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Small random parameters, as "dummy" gives; buffers stay."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.normal_(std=1e-3)


def inspect(model: nn.Module) -> tuple[dict[str, int], dict[str, list[str]], int, Callable[[str], str]]:
    """Hashes of the model's parameters, its fused modules, its number of key-value heads, and its names for
    those of a checkpoint (a vision-language model has its own).
    """
    packed = {k: list(v) for k, v in (getattr(model, "packed_modules_mapping", None) or {}).items()}
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    prefixes = getattr(getattr(model, "hf_to_vllm_mapper", None), "orig_to_new_prefix", None) or {}

    def rename(name: str) -> str:
        prefix = max((p for p in prefixes if name.startswith(p)), key=len, default="")
        return (prefixes[prefix] or "") + name.removeprefix(prefix) if prefix else name

    kv_heads = int(getattr(config, "num_key_value_heads", None) or 0)
    return hash_all(model.named_parameters()), packed, kv_heads, rename
