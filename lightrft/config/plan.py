"""What a run will do, before it does anything: steps, tokens, memory."""

from __future__ import annotations

from dataclasses import dataclass

from lightrft.config.memory import MemoryPlan, estimate_memory
from lightrft.config.resolve import Config
from lightrft.config.sources import count_prompts
from lightrft.config.steps import StepPlan, enough_prompts, plan_steps
from lightrft.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """`--dry_run` prints it, and so does every run before its models load."""

    config: Config
    steps: StepPlan
    memory: MemoryPlan | None  # None: config.json is missing, or of an architecture without a formula
    notes: tuple[str, ...]

    @property
    def steps_per_episode(self) -> int | None:
        return self.steps.steps_per_episode

    @property
    def rollouts_per_step(self) -> int:
        return self.steps.rollouts_per_step

    @property
    def optimizer_steps(self) -> int | None:
        """Of the whole run, all episodes together."""
        total = self.steps.total_steps
        return None if total is None else total * self.steps.updates_per_step

    def render(self) -> str:
        """One screen of text, without a trailing newline."""
        from lightrft.config.render import render

        return render(self)

    @property
    def max_tokens_per_rollout(self) -> int:
        """If every prompt and response were as long as allowed."""
        return int(self.steps.samples_per_rollout * self.config.max_len)

    @property
    def engine_groups(self) -> int:
        """Copies of the engine, each over `engine_tp_size` ranks; with hf every rank is its own."""
        width = 1 if self.config.engine_type == "hf" else self.config.engine_tp_size
        return int(self.config.num_ranks // width)


def make_plan(config: Config, num_prompts: int | None = None) -> Plan:
    """The plan for `num_prompts` rows; None takes what can be counted of `--prompt_data` without loading it.

    Raises:
        ConfigError: the prompts are too few for one step.
    """
    if num_prompts is None and config.prompt_data is not None:
        num_prompts = count_prompts(config.prompt_data)
    problem = None if num_prompts is None else enough_prompts(config, num_prompts)
    if problem:
        raise ConfigError(problem)
    return Plan(config, plan_steps(config, num_prompts), estimate_memory(config), tuple(_notes(config)))


def _notes(config: Config) -> list[str]:
    notes = [how for name, how in config.resolved.items() if name == "num_gpus"]
    if any(not gpu.has_bf16 for gpu in config.gpus):
        advice = "--attn_implementation eager"
        if config.engine_type != "hf":
            advice = f"--engine_dtype float32 {advice} --no_engine_chunked_prefill"
        notes.append(f"a GPU here has no bfloat16: {advice} is what such GPUs run")
    if config.adam_offload:
        notes.append("adam_offload keeps optimizer states in the host's memory")
    return notes
