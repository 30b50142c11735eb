"""The plan as one aligned screen of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightrft.config.availability import acts, missing_part
from lightrft.config.engines import engine_dtype
from lightrft.config.flags import GROUPS
from lightrft.config.memory import GIB, PHASES, MemoryPlan
from lightrft.config.plan import Plan
from lightrft.config.resolve import Config

WIDTH = 110
LABEL = 22


def render(plan: Plan) -> str:
    """Head, steps, memory, flags; no trailing newline."""
    lines = [f"LightRFT plan{' (dry run)' if plan.config.dry_run else ''}"]
    lines += _table(_head(plan))
    lines += ["", "steps", *_table(_steps(plan))]
    lines += ["", *_memory(plan)]
    head = "flags that act (* set by you, ~ derived; --print_config shows all)"
    lines += ["", head, *_flags(plan.config)]
    lines += [line for note in plan.notes for line in _wrapped(f"note: {note}", "")]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    return [line for label, text in rows for line in _wrapped(f"  {label:<{LABEL}}{text}", " " * (LABEL + 2))]


def _plural(count: int | None, word: str) -> str:
    return f"{'?' if count is None else f'{count:,}'} {word}{'' if count == 1 else 's'}"


def _head(plan: Plan) -> Iterator[tuple[str, str]]:
    config, memory = plan.config, plan.memory
    described = "config.json is missing or of an architecture without a formula here"
    if memory is not None:
        shape = memory.shape
        described = (
            f"{shape.model_type}, {_big(shape.parameters)} parameters, {shape.layers} layers, hidden "
            f"{shape.hidden}, vocabulary {shape.vocab}"
        )
    yield "model", f"{Path(config.pretrain).name}: {described}"
    yield "hardware", _hardware(config)
    yield from _engine(plan)
    yield "algorithm", _algorithm(config)
    yield "reward", " + ".join(config.reward)
    rows = plan.steps.num_prompts
    counted = "rows are counted when they are loaded" if rows is None else _plural(rows, "row")
    yield "data", f"{config.prompt_data or 'none given'}: {counted}"


def _engine(plan: Plan) -> Iterator[tuple[str, str]]:
    config = plan.config
    if config.engine_type == "hf":
        yield "engine", "hf: every rank generates with the policy module"
        return
    yield (
        "engine",
        f"{config.engine_type}: {_plural(plan.engine_groups, 'group')} of tensor-parallel size "
        f"{config.engine_tp_size}, {engine_dtype(config)}",
    )
    yield "engine memory", _engine_memory(config)
    reasons = {
        "all": f"of all responses, for --rollout_is {config.rollout_is}",
        "sample": "of a sample of prompts, for the gap sentinel",
        "none": "none: the gap between engine and trainer is not watched",
    }
    if config.rollout_is == "none":
        reasons["all"] = "of all responses, for the gap sentinel"
    yield "engine log-probs", reasons[config.rollout_logprobs]
    every = config.check_weight_sync
    checked = f"compared at the first sync and every {_plural(every, 'step')}" if every else "never compared"
    yield "weight sync", f"in buckets of {config.sync_bucket_mb} MiB, {checked}"


def _engine_memory(config: Config) -> str:
    if not config.on_gpu:
        return "no sleep: the engine keeps its memory on a CPU"
    share = f"{config.engine_mem_util:g} of each GPU"
    if not config.enable_engine_sleep:
        return f"{share}, kept while the trainer trains (--disable_engine_sleep)"
    return f"{share} while it generates; asleep, it gives it to the trainer"


def _big(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


def _hardware(config: Config) -> str:
    precision = "bfloat16" if config.bf16 else "float32"
    backend = "FSDP" if config.fsdp else f"DeepSpeed ZeRO-{config.zero_stage}"
    if not config.on_gpu:
        place = "CPU"
    elif config.gpus:
        place = f"{config.gpus[0].name} ({config.gpus[0].memory_bytes / GIB:.0f} GiB)"
    else:
        place = "GPU (assumed)"
    return f"{config.num_ranks} x {place}, {precision}, {backend}"


def _algorithm(config: Config) -> str:
    where = "the loss" if config.use_kl_loss else "the reward"
    kl = f"KL {config.kl_estimator} x {config.init_kl_coef:g} in {where}" if config.init_kl_coef else "no KL"
    return f"{config.advantage_estimator}, {config.policy_loss} loss, {config.loss_agg_mode}, {kl}"


def _steps(plan: Plan) -> Iterator[tuple[str, str]]:
    config, steps = plan.config, plan.steps
    yield (
        "one rollout",
        f"{config.rollout_batch_size} prompts x {config.n_samples_per_prompt} = {steps.samples_per_rollout} "
        f"samples, at most {plan.max_tokens_per_rollout:,} tokens",
    )
    order = ", off-policy after the first" if steps.updates_per_step > 1 else ", on-policy"
    yield (
        "one step",
        f"{_plural(steps.rollouts_per_step, 'rollout')}, then "
        f"{_plural(steps.updates_per_step, 'optimizer step')}{order}",
    )
    yield (
        "one optimizer step",
        f"{config.train_batch_size} samples = {config.data_parallel_size} ranks x {steps.accumulation_steps} "
        f"accumulated micro-batches of {config.micro_train_batch_size}",
    )
    yield "one episode", _episode(plan)
    if steps.total_steps is not None and steps.num_episodes > 1:
        updates = steps.total_steps * steps.updates_per_step
        yield (
            "the run",
            f"{steps.num_episodes} episodes = {_plural(steps.total_steps, 'step')}, "
            f"{_plural(updates, 'optimizer step')}",
        )


def _episode(plan: Plan) -> str:
    steps = plan.steps
    if steps.steps_per_episode is None:
        return "depends on the number of prompts"
    text = (
        f"{_plural(steps.steps_per_episode, 'step')} = {_plural(steps.rollouts_per_episode, 'rollout')} and "
        f"{_plural(steps.optimizer_steps_per_episode, 'optimizer step')}"
    )
    if steps.dropped_prompts:
        text += f"; {steps.dropped_prompts} of {steps.num_prompts} prompts dropped"
    return text


def _memory(plan: Plan) -> list[str]:
    memory, unit = plan.memory, "GPU" if plan.config.on_gpu else "process"
    if memory is None:
        return ["memory: no estimate, as the model's config.json is missing or of an unknown architecture"]
    heads = "".join(f"{phase:>12}" for phase in PHASES)
    lines = [f"{f'memory per {unit}, estimated in GiB':<36}{heads}"]
    lines += [f"  {row.name:<34}{_gib(row.bytes)}" for row in memory.rows]
    limit = f"   of {memory.limit / GIB:.0f}" if memory.limit else ""
    lines.append(f"  {'total':<34}{_gib(memory.totals)}{limit}")
    return lines + _wrapped(f"  {_caveat(plan.config, memory)}", "  ")


def _gib(values: tuple[float, float, float]) -> str:
    return "".join(f"{value / GIB:>12.2f}" if value else f"{'-':>12}" for value in values)


def _caveat(config: Config, memory: MemoryPlan) -> str:
    text = (
        f"An estimate: every sequence as long as allowed, micro-batches of {config.micro_rollout_batch_size} "
        f"(experience) and {config.micro_train_batch_size} (update); without the CUDA context, communication "
        "buffers and fragmentation."
    )
    if memory.host_bytes:
        text += f" Optimizer states in host memory: {memory.host_bytes / GIB:.2f} GiB per rank."
    if config.modality == "vision":
        text += " The vision tower is not counted."
    return text


def _flags(config: Config) -> Iterator[str]:
    """The flags that act in this run, by group."""
    for group in GROUPS:
        words = []
        for flag in group.flags:
            names = {flag.name, *(other.name for other in group.flags if other.negates == flag.name)}
            mark = "*" if names & config.given else "~" if flag.name in config.resolved else ""
            idle = missing_part(flag) or not acts(config, flag) or config.values.get(flag.name) is None
            if not (flag.negates or flag.hidden) and (mark or not idle):
                words.append(f"{flag.name}={_shown(config.values[flag.name])}{mark}")
        if words:
            yield from _table(iter([(group.name, "  ".join(words))]))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
