"""Living beside an engine: its random draws, the memory it wants, what its failures mean."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the process's generators for the body, and put back what they were.

    Engines that live in this process draw from the global generators of torch and numpy, which the trainer's
    reproducibility and its checkpoints depend on.
    """
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


def free_cached_memory(device: torch.device) -> None:
    """Hand back what torch's allocator keeps for later: an engine's memory comes from the driver."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def advice(error: Exception) -> str:
    """What an engine said, and where memory is the matter, the flags that give or take it."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if "memory" in said.lower() or "kv cache" in said.lower():
        said += (
            ". To fit: another --engine_mem_util (less where the GPU is full, more where the KV cache is too "
            "small), a lower --engine_max_num_seqs or --engine_max_num_batched_tokens, a shorter --max_len, "
            "more GPUs for each engine (--engine_tp_size), or --engine_type hf"
        )
    return said
