"""Batch arithmetic: TBS counts samples, RBS counts prompts, and one rollout yields RBS x n samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lightrft.config.messages import alternatives
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning
from lightrft.config.sources import count_prompts
from lightrft.config.steps import enough_prompts


def _around(value: int, base: int) -> list[int]:
    """The multiples of `base` next to `value`, below and above: 10 and 4 give [8, 12]."""
    below = value // base * base
    return [m for m in (below, below + base) if m > 0]


def _train_batch_sizes(config: Config) -> list[int]:
    """The nearest train batch sizes that satisfy every rule, at most one below and one above the user's."""
    unit = config.micro_train_batch_size * config.data_parallel_size
    samples, given = config.samples_per_rollout, config.train_batch_size
    whole = math.lcm(unit, samples)
    parts = [d for d in range(unit, samples + 1, unit) if samples % d == 0]
    valid = sorted({*parts, *_around(given, whole), whole})
    below, above = [v for v in valid if v < given], [v for v in valid if v > given]
    return below[-1:] + above[:1]


@error
def rollout_batch_divides(config: Config) -> Iterator[str]:
    size, ranks = config.rollout_batch_size, config.num_ranks
    if size % ranks:
        yield (
            f"rollout_batch_size ({size}) must be divisible by the number of {config.ranks_word} ({ranks}): "
            f"use {alternatives(_around(size, ranks))}"
        )


@error
def train_batch_divides(config: Config) -> Iterator[str]:
    size, micro, ranks = config.train_batch_size, config.micro_train_batch_size, config.data_parallel_size
    if size % (micro * ranks) == 0:
        return
    if config.sp_size > 1:
        factor = f"{config.num_ranks} {config.ranks_word} / sp_size {config.sp_size} ({ranks})"
    else:
        factor = f"{config.ranks_word} ({ranks})"
    fitting = [m for m in range(1, micro) if size % (m * ranks) == 0][-2:]
    use = [f"micro_train_batch_size {alternatives(fitting)}"] if fitting else []
    use.append(f"train_batch_size {alternatives(_train_batch_sizes(config))}")
    yield (
        f"train_batch_size ({size}) must be divisible by micro_train_batch_size ({micro}) x {factor} = "
        f"{micro * ranks}: use {', or '.join(use)}"
    )


@error
def train_and_rollout_divide(config: Config) -> Iterator[str]:
    size, samples = config.train_batch_size, config.samples_per_rollout
    if samples % size and size % samples:
        yield (
            f"train_batch_size ({size} samples) and one rollout ({config.rollout_batch_size} prompts x "
            f"{config.n_samples_per_prompt} samples = {samples}) must divide one another: "
            f"use train_batch_size {alternatives(_train_batch_sizes(config))}"
        )


@error
def enough_prompts_for_a_step(config: Config) -> Iterator[str]:
    if config.prompt_data is not None:
        rows = count_prompts(config.prompt_data)
        problem = None if rows is None else enough_prompts(config, rows)
        if problem:
            yield problem


@error
def tensor_parallel_divides(config: Config) -> Iterator[str]:
    yield from _group_divides(config, "engine_tp_size" if config.engine_type != "hf" else "")


@error
def sequence_parallel_divides(config: Config) -> Iterator[str]:
    yield from _group_divides(config, "sp_size")


def _group_divides(config: Config, flag: str) -> Iterator[str]:
    size, ranks = config.values.get(flag, 1), config.num_ranks
    if ranks % size:
        divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
        near = [d for d in divisors if d < size][-1:] + [d for d in divisors if d > size][:1]
        yield (
            f"{flag} ({size}) must divide the number of {config.ranks_word} ({ranks}): "
            f"use {alternatives(near)}"
        )


@warning
def batch_rule(config: Config) -> Iterator[str]:
    size, samples = config.train_batch_size, config.samples_per_rollout
    if size < samples and samples % size == 0:
        steps = samples // size
        yield (
            f"train_batch_size >= rollout_batch_size x n_samples_per_prompt does not hold: {size} < "
            f"{config.rollout_batch_size} x {config.n_samples_per_prompt} = {samples}. Each rollout is "
            f"trained in {steps} optimizer steps (per epoch); those after the first are off-policy: their "
            f"samples come from the weights before it. Fully on-policy: --train_batch_size {samples}"
        )


RULES = (
    rollout_batch_divides,
    train_batch_divides,
    train_and_rollout_divide,
    enough_prompts_for_a_step,
    tensor_parallel_divides,
    sequence_parallel_divides,
    batch_rule,
)
