"""Step arithmetic: a step is the rollouts that one optimizer step needs, then the optimizer steps on them."""

from __future__ import annotations

from dataclasses import dataclass

from lightrft.config.resolve import Config


@dataclass(frozen=True)
class StepPlan:
    """How a run is cut. The counts per episode are None while the number of prompts is unknown.

    7473 prompts, n 5, TBS 128, RBS 128: 58 steps per episode of 1 rollout and 5 optimizer steps each, 49
    prompts left over.
    """

    num_prompts: int | None
    samples_per_rollout: int
    rollouts_per_step: int
    updates_per_step: int  # optimizer steps
    accumulation_steps: int  # micro-batches per optimizer step and rank
    steps_per_episode: int | None
    dropped_prompts: int | None  # per episode; shuffling drops others each time
    num_episodes: int

    @property
    def rollouts_per_episode(self) -> int | None:
        return None if self.steps_per_episode is None else self.steps_per_episode * self.rollouts_per_step

    @property
    def optimizer_steps_per_episode(self) -> int | None:
        return None if self.steps_per_episode is None else self.steps_per_episode * self.updates_per_step

    @property
    def total_steps(self) -> int | None:
        return None if self.steps_per_episode is None else self.steps_per_episode * self.num_episodes


def plan_steps(config: Config, num_prompts: int | None) -> StepPlan:
    """The arithmetic of `config` for a prompt set of `num_prompts` rows (None: unknown)."""
    samples, size = config.samples_per_rollout, config.train_batch_size
    rollouts = max(1, size // samples)
    prompts_per_step = rollouts * config.rollout_batch_size
    steps = None if num_prompts is None else num_prompts // prompts_per_step
    return StepPlan(
        num_prompts=num_prompts,
        samples_per_rollout=samples,
        rollouts_per_step=rollouts,
        updates_per_step=max(1, samples // size) * config.max_epochs,
        accumulation_steps=max(1, size // (config.micro_train_batch_size * config.data_parallel_size)),
        steps_per_episode=steps,
        dropped_prompts=None if num_prompts is None else num_prompts % prompts_per_step,
        num_episodes=config.num_episodes,
    )


def enough_prompts(config: Config, num_prompts: int) -> str | None:
    """Why these prompts are too few for one step, with what would fit; None where they suffice.

    A learning-rate schedule of length 0 and an episode that trains nothing are the alternative.
    """
    steps = plan_steps(config, num_prompts)
    needed = steps.rollouts_per_step * config.rollout_batch_size
    if num_prompts >= needed:
        return None
    n, size, rollout = config.n_samples_per_prompt, config.train_batch_size, config.rollout_batch_size
    given = (
        f"{num_prompts} prompts x {n} samples are fewer than one step takes ({needed} prompts: "
        f"train_batch_size {size}, rollout_batch_size {rollout}): give at least {needed} prompts"
    )
    fitting = min(rollout, num_prompts // config.num_ranks * config.num_ranks)
    unit = config.micro_train_batch_size * config.data_parallel_size
    if fitting == 0 or fitting * n % unit:
        return given
    smaller = size if fitting * n % size == 0 else fitting * n
    changes = [f"rollout_batch_size {fitting}"] * (fitting != rollout)
    changes += [f"train_batch_size {smaller}"] * (smaller != size)
    return f"{given}, or use {' with '.join(changes)}"
