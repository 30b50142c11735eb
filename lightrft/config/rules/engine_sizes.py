"""Rules of the inference engine's sizes: how its ranks share the model, and whether it fits its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightrft.config.engines import fits_heads
from lightrft.config.memory import GIB, engine_minimum, smallest_gpu
from lightrft.config.messages import alternatives
from lightrft.config.model_files import model_folder, read_config
from lightrft.config.model_shape import ModelShape, read_shape
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error

_LARGEST_SHARE = 0.95  # of a GPU: CUDA's own context needs some


def _shape(config: Config) -> ModelShape | None:
    return (
        None
        if config.engine_type == "hf"
        else read_shape(read_config(model_folder(config.pretrain, config.hub)))
    )


def _sizes(config: Config, shape: ModelShape) -> list[int]:
    """Tensor-parallel sizes that the ranks and the model's heads allow; 1 is always among them."""
    ranks = config.num_ranks
    divisors = [size for size in range(1, ranks + 1) if ranks % size == 0]
    return [size for size in divisors if fits_heads(size, shape.heads, shape.kv_heads)]


@error
def tensor_parallel_divides_heads(config: Config) -> Iterator[str]:
    shape, size = _shape(config), config.engine_tp_size
    if shape is None or fits_heads(size, shape.heads, shape.kv_heads):
        return
    valid = _sizes(config, shape)
    near = [s for s in valid if s < size][-1:] + [s for s in valid if s > size][:1]
    yield (
        f"engine_tp_size ({size}) must divide the model's {shape.heads} attention heads, and divide its "
        f"{shape.kv_heads} key-value heads or be a multiple of them: use {alternatives(near)}"
    )


@error
def engine_memory_holds_the_weights(config: Config) -> Iterator[str]:
    shape, total, size = _shape(config), smallest_gpu(config), config.engine_tp_size
    if shape is None or not total:
        return
    given, needed = config.engine_mem_util * total, engine_minimum(config, shape, size)
    if needed <= given:
        return
    share = math.ceil(100 * needed / total) / 100
    larger = [s for s in _sizes(config, shape) if s > size and engine_minimum(config, shape, s) <= given]
    use = [f"--engine_mem_util {share:g} or more"] if share <= _LARGEST_SHARE else []
    use += [f"--engine_tp_size {larger[0]}"] if larger else []
    yield (
        f"engine_mem_util ({config.engine_mem_util:g}) gives the engine {given / GIB:.1f} of the GPU's "
        f"{total / GIB:.0f} GiB, and the weights with room for one sequence take {needed / GIB:.1f}: use "
        f"{', or '.join(use) or 'more or larger GPUs, or a smaller model'}"
    )


RULES = (tensor_parallel_divides_heads, engine_memory_holds_the_weights)
