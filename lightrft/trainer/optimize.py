"""One optimizer step of one model: micro-batches, the skip that all ranks share, the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightrft.algorithms.schedule import Schedule, learning_rate
from lightrft.distributed.collectives import all_ranks, world_size
from lightrft.distributed.strategy import TrainableModel
from lightrft.errors import TrainingError
from lightrft.trainer.metrics import MetricSums


@dataclass(frozen=True)
class OptimizeOptions:
    """Learning rate and patience of one model; `flag` is the flag that sets the rate, for messages."""

    learning_rate: float
    warmup_steps: int
    total_steps: int
    lr_scheduler: Schedule = "constant"
    max_skipped_steps: int = 10
    flag: str = "--actor_learning_rate"


@dataclass
class UpdateCounters:
    """What a resumed run must know of the updates before it."""

    optimizer_steps: int = 0  # taken; skipped ones do not count and do not move the learning rate
    skipped_steps: int = 0
    skipped_in_a_row: int = 0


class Optimizer:
    """Takes the optimizer steps of `model`; its metrics stand under `name` (policy, critic)."""

    def __init__(
        self, name: str, model: TrainableModel, options: OptimizeOptions, device: torch.device
    ) -> None:
        self.name = name
        self.model = model
        self.options = options
        self.device = device
        self.counters = UpdateCounters()

    def step(self, losses: Sequence[Callable[[], Tensor]], metrics: MetricSums) -> bool:
        """One step over micro-batches. Returns whether the weights moved; the same on all ranks.

        Each of `losses` computes a scalar, this rank's share of the step's loss: shares add up over
        micro-batches and ranks. All ranks give the same number of them.

        Raises:
            TrainingError: too many steps in a row were not finite; on all ranks together.
        """
        for i, compute in enumerate(losses):
            loss = compute()
            finite = all_ranks(bool(torch.isfinite(loss)), self.device)
            if finite:
                metrics.add(f"{self.name}/loss", loss, 1.0 / (len(losses) * world_size()))
            self.model.backward(loss, last=i == len(losses) - 1, finite=finite)
            if not finite:
                break
        return self._step(metrics)

    def _step(self, metrics: MetricSums) -> bool:
        o, counters = self.options, self.counters
        rate = learning_rate(
            counters.optimizer_steps, o.learning_rate, o.warmup_steps, o.total_steps, o.lr_scheduler
        )
        result = self.model.step(rate)
        metrics.add(f"{self.name}/lr", rate)
        if not result.skipped:
            counters.optimizer_steps += 1
            counters.skipped_in_a_row = 0
            metrics.add(f"{self.name}/grad_norm", result.grad_norm)
            return True
        counters.skipped_steps += 1
        counters.skipped_in_a_row += 1
        if counters.skipped_in_a_row >= o.max_skipped_steps:
            raise TrainingError(
                f"{counters.skipped_in_a_row} optimizer steps in a row of the {self.name} had a loss or "
                f"gradient that is not finite (--max_skipped_steps {o.max_skipped_steps}): lower {o.flag} "
                f"({o.learning_rate}) or --max_norm, or look at the rewards and log-probs of the last step"
            )
        return False
