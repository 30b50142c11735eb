"""The loop. Every rank runs it in lock-step.

     sampler ─► engine.generate ─► reward ─► experience ─► update ─► weight sync ─┐
        ▲          awake             asleep from here on               weights    │
        │                                                              awake      │
        └─────────────────────────────────────────────────────────────────────────┘

`train_step` is one turn of it; `fit` evaluates, logs, saves and decides when to stop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightrft.data.sampler import PromptSampler, rank_share
from lightrft.distributed.collectives import rank, world_size
from lightrft.distributed.strategy import TrainableModel
from lightrft.observability.console import Console
from lightrft.observability.logger import RunLogger
from lightrft.observability.memory import memory_report
from lightrft.observability.sentinels import SentinelBoard
from lightrft.observability.timers import Timers
from lightrft.observability.trajectories import TrajectoryWriter
from lightrft.rollout.base import RolloutEngine, SamplingOptions
from lightrft.trainer.checkpoint import CheckpointStore
from lightrft.trainer.critic import CriticUpdater
from lightrft.trainer.ema import EMA
from lightrft.trainer.evaluate import Evaluator, summary
from lightrft.trainer.experience import ExperienceMaker
from lightrft.trainer.export import Exporter
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.resample import DynamicSampler
from lightrft.trainer.state import local_state, shared_state
from lightrft.trainer.update import PolicyUpdater
from lightrft.types import Prompt, RewardResult, Rollout


@dataclass(frozen=True)
class Parts:
    """What the loop turns: built once, by `build.py`."""

    prompts: Sequence[Prompt]
    sampler: PromptSampler
    policy: TrainableModel
    engine: RolloutEngine
    reward: Any
    experience_maker: ExperienceMaker
    updater: PolicyUpdater
    critic_updater: CriticUpdater | None
    ema: EMA | None
    evaluator: Evaluator | None
    checkpoints: CheckpointStore
    exporter: Exporter


@dataclass(frozen=True)
class Observers:
    """What watches the loop."""

    logger: RunLogger
    console: Console
    timers: Timers
    sentinels: SentinelBoard
    trajectories: TrajectoryWriter


@dataclass(frozen=True)
class FitOptions:
    """The flags of the loop. A step is `rollouts_per_step` rollouts and the optimizer steps on them."""

    steps_per_episode: int
    num_episodes: int
    rollouts_per_step: int
    sampling: SamplingOptions
    max_gen_batches: int = 1  # more than 1: dynamic sampling
    freezing_actor_steps: int = 0  # the critic learns alone for so many steps
    eval_before_train: bool = False
    eval_steps: int = 0
    save_steps: int = 0
    save_interval: int = 1
    save_hf_ckpt: bool = False
    debug: bool = False  # memory every step

    @property
    def total_steps(self) -> int:
        return self.steps_per_episode * self.num_episodes


class Controller:
    """Trains until every episode is done."""

    def __init__(
        self,
        parts: Parts,
        observers: Observers,
        options: FitOptions,
        run_record: dict[str, Any],
        device: torch.device,
    ) -> None:
        self.parts = parts
        self.observers = observers
        self.options = options
        self.run_record = run_record  # flags, versions, prompt fingerprint: written into every checkpoint
        self.device = device
        self.step = 0
        self.last_checkpoint: Path | None = None

    def fit(self) -> dict[str, float]:
        """Run from the current step to the end; returns the metrics of the last evaluation."""
        options, evaluated, began = self.options, {}, time.perf_counter()
        if options.eval_before_train and self.step == 0:
            self._evaluate()
        while self.step < options.total_steps:
            with self.observers.timers.step():
                metrics = self.train_step()
            self.step += 1
            self._report(metrics)
            last = self.step == options.total_steps
            if options.eval_steps and self.step % options.eval_steps == 0 and not last:
                self._evaluate()
            if last or self._save_is_due():
                self._save()
        if self.parts.evaluator is not None:
            evaluated = self._evaluate()
        self._export()
        self.observers.console.text(self.observers.sentinels.table())
        self.observers.console.text(self._time_summary(time.perf_counter() - began))
        return evaluated

    def _time_summary(self, seconds: float) -> str:
        """Where the time of `fit` went, and the share that lies in no phase: what the loop itself costs."""
        totals = self.observers.timers.totals()
        phases = ", ".join(f"{name} {spent:.1f} s" for name, spent in totals.items())
        rest = seconds - sum(totals.values())
        return f"time: {seconds:.1f} s: {phases}; the trainer itself {rest:.1f} s ({rest / seconds:.1%})"

    def train_step(self) -> dict[str, float]:
        """One turn of the loop, over `rollouts_per_step` rollouts. Returns globally reduced metrics."""
        parts, timers, console = self.parts, self.observers.timers, self.observers.console
        dynamic, sampling = self.options.max_gen_batches > 1, MetricSums()
        rollouts = self._sample(stay_awake=dynamic)
        with timers("reward"), console.phase("reward"):
            result: RewardResult = parts.reward(rollouts)
        if dynamic:
            rollouts, result = self._resample(rollouts, result, sampling)
        with timers("experience"), console.phase("experience"):
            experience, metrics = parts.experience_maker.make(rollouts, result)
        with timers("update"), console.phase("update"):
            if parts.critic_updater is not None:
                metrics.merge(parts.critic_updater.update(experience))
            if self.step >= self.options.freezing_actor_steps:
                metrics.merge(parts.updater.update(experience))
        with timers("sync"), console.phase("sync"):
            parts.engine.sync_weights(parts.policy)
        self.observers.trajectories.write(self.step + 1, rollouts, result)
        metrics.merge(sampling)
        reduced = metrics.reduce(self.device)
        if "policy/kl" in reduced:
            num_samples = int(reduced["train/samples"])
            parts.updater.kl_controller.update(reduced["policy/kl"], num_samples)
        return reduced

    def _resample(
        self, rollouts: list[Rollout], result: RewardResult, metrics: MetricSums
    ) -> tuple[list[Rollout], RewardResult]:
        """Dynamic sampling: other prompts in the place of groups that teach nothing."""
        timers, console = self.observers.timers, self.observers.console

        def reward(more: list[Rollout]) -> RewardResult:
            with timers("reward"), console.phase("reward"):
                scored: RewardResult = self.parts.reward(more)
            return scored

        sampler = DynamicSampler(
            lambda: self._sample(stay_awake=True), reward, self.options.max_gen_batches, self.device
        )
        completed = sampler.complete(rollouts, result, metrics)
        self.parts.engine.sleep()
        return completed

    def _sample(self, stay_awake: bool) -> list[Rollout]:
        """Wake the engine, generate, and put it to sleep unless more may be asked for."""
        engine, seen = self.parts.engine, self.observers
        with seen.timers("generate"), seen.console.phase("generate") as progress:
            engine.on_progress = progress.reach
            engine.wake()
            rollouts = self._generate()
            if not stay_awake:
                engine.sleep()
        return rollouts

    def _generate(self) -> list[Rollout]:
        """The next rollouts of this rank's share of the prompts."""
        sampler = self.parts.sampler
        number = (sampler.episode * len(sampler) + sampler.position) * self.options.rollouts_per_step
        rows = sampler.next_batch()
        size = len(rows) // self.options.rollouts_per_step
        rollouts: list[Rollout] = []
        for start in range(0, len(rows), size):
            share = rank_share(rows[start : start + size], rank(), world_size())
            sampling = self.options.sampling.for_rollout(number + start // size)
            rollouts += self.parts.engine.generate([self.parts.prompts[i] for i in share], sampling)
        return rollouts

    def _report(self, metrics: dict[str, float]) -> None:
        seen = self.observers
        metrics = metrics | {"policy/kl_coef": self.parts.updater.kl_controller.coef}
        metrics |= seen.timers.last_step()
        if self.options.debug:
            metrics |= {f"memory/{name}": float(value) for name, value in memory_report().items()}
        metrics |= seen.sentinels.check(metrics)
        seen.logger.log(self.step, metrics)
        seen.console.step(self.step, self.options.total_steps, metrics)
        if changes := seen.sentinels.changes():
            seen.console.text(changes)

    def _evaluate(self) -> dict[str, float]:
        evaluator = self.parts.evaluator
        if evaluator is None:
            return {}
        with self.observers.timers("evaluate"), self.observers.console.phase("evaluate"):
            metrics = evaluator.evaluate(self.device)
        self.observers.logger.log(self.step, metrics)
        self.observers.console.text(f"step {self.step}: {summary(metrics)}")
        return metrics

    def _save_is_due(self) -> bool:
        o = self.options
        by_steps = o.save_steps > 0 and self.step % o.save_steps == 0
        episode_ended = self.step % o.steps_per_episode == 0
        return by_steps or (episode_ended and (self.step // o.steps_per_episode) % o.save_interval == 0)

    def _save(self) -> None:
        with self.observers.timers("save"), self.observers.console.phase("save"):
            self.last_checkpoint = self.parts.checkpoints.save(
                meta=self.run_record | {"step": self.step},
                shared=shared_state(self.parts, self.step),
                local=local_state(self.parts),
                export=self.parts.exporter.write if self.options.save_hf_ckpt else None,
            )
        self.observers.console.text(f"step {self.step}: checkpoint {self.last_checkpoint}")

    def _export(self) -> None:
        with self.observers.timers("save"), self.observers.console.phase("export"):
            parts = self.parts
            folder = parts.exporter.export_final()
            if parts.ema is not None:
                parts.exporter.export_final("hf_ema", parts.ema.parameters())
            if parts.critic_updater is not None:
                parts.critic_updater.export(folder.with_name("critic"))
        self.observers.console.text(f"model written to {folder}")
