"""Rules of the machine: GPUs, precision, installed packages."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

from lightrft.config.memory import GIB, PHASES, MemoryPlan, engine_minimum, estimate_memory
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning

_NEEDED = ("torch", "transformers", "deepspeed", "datasets")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@error
def gpus_are_here(config: Config) -> Iterator[str]:
    if config.planning or config.world.launcher or config.num_gpus is None:
        return
    if config.num_gpus > len(config.gpus):
        here = len(config.gpus)
        use = f"use --num_gpus {here}" if here else "leave --num_gpus out to train on the CPU"
        yield f"num_gpus ({config.num_gpus}) is more than the {here} GPUs visible on this host: {use}"


@error
def launcher_agrees(config: Config) -> Iterator[str]:
    world = config.world
    if not world.launcher:
        return
    if config.num_gpus not in (None, world.local_size):
        yield (
            f"num_gpus ({config.num_gpus}) but {world.launcher} started {world.local_size} processes on this "
            "host: leave --num_gpus out, and give the number to the launcher"
        )
    if 0 < len(config.gpus) < world.local_size:
        yield (
            f"{world.launcher} started {world.local_size} processes on this host but {len(config.gpus)} GPUs "
            f"are visible to each: start {len(config.gpus)}, and let every process see all GPUs of its host"
        )


@error
def precision_exists(config: Config) -> Iterator[str]:
    old = [gpu for gpu in config.gpus if not gpu.has_bf16]
    if config.bf16 and config.on_gpu and old:
        major, minor = old[0].capability
        yield (
            f"bf16: {old[0].name} (sm_{major}{minor}) has no bfloat16, which starts at sm_80: use --no_bf16, "
            "best with --attn_implementation eager"
        )


@error
def flash_attention_works(config: Config) -> Iterator[str]:
    if config.attn_implementation != "flash_attention_2":
        return
    if not config.on_gpu:
        yield "attn_implementation flash_attention_2 needs a GPU: use sdpa"
    elif not config.bf16:
        yield "attn_implementation flash_attention_2 needs bfloat16: use sdpa, or --bf16"
    if not config.planning and not _installed("flash_attn"):
        yield "attn_implementation flash_attention_2 needs a package: pip install flash-attn, or use sdpa"


@error
def packages_are_installed(config: Config) -> Iterator[str]:
    if config.planning:
        return
    missing = [name for name in _NEEDED if not _installed(name)]
    if missing:
        yield f"training needs {', '.join(missing)}: pip install {' '.join(missing)}"
    for flag, package in (("use_tensorboard", "tensorboard"), ("use_wandb", "wandb")):
        if config.values[flag] is not None and not _installed(package):
            yield f"--{flag} needs the package {package}: pip install {package}, or leave the flag out"


@warning
def memory_suffices(config: Config) -> Iterator[str]:
    memory = estimate_memory(config)
    if memory is None or not memory.limit:
        return
    phase, needed = max(zip(PHASES, memory.totals, strict=True), key=lambda pair: pair[1])
    if needed > memory.limit:
        yield (
            f"the estimate for one GPU, {needed / GIB:.0f} GiB in the {phase} phase, is over the "
            f"{memory.limit / GIB:.0f} GiB that it has: try {', '.join(_savers(config, memory, phase))}"
        )


def _savers(config: Config, memory: MemoryPlan, phase: str) -> list[str]:
    """What would make `phase` smaller, the cheapest first."""
    savers = _engine_savers(config, memory, phase)
    if phase == "update":
        savers += ["--gradient_checkpointing"] * (not config.gradient_checkpointing)
        savers += ["--micro_train_batch_size 1"] * (config.micro_train_batch_size > 1)
    elif phase == "experience" or config.engine_type == "hf":
        savers += ["--micro_rollout_batch_size 1"] * (config.micro_rollout_batch_size > 1)
    savers += ["--adam_offload"] * (not config.adam_offload)
    savers += ["--zero_stage 3"] * (config.num_ranks > 1 and config.zero_stage < 3 and not config.fsdp)
    return [*savers, "a shorter --max_len"]


def _engine_savers(config: Config, memory: MemoryPlan, phase: str) -> list[str]:
    """Of an engine: sleep where it is awake beside the trainer; a smaller share where it generates."""
    if config.engine_type == "hf":
        return []
    if phase != "generate":
        return [] if config.enable_engine_sleep else ["--enable_engine_sleep"]
    others = sum(row.bytes[0] for row in memory.rows if row.name != f"engine {config.engine_type}")
    share = math.floor(100 * (memory.limit - others) / memory.limit) / 100
    least = engine_minimum(config, memory.shape, config.engine_tp_size) / memory.limit
    return [f"--engine_mem_util {share:g}"] if share >= least else []


RULES = (
    gpus_are_here,
    launcher_agrees,
    precision_exists,
    flash_attention_works,
    packages_are_installed,
    memory_suffices,
)
