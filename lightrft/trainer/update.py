"""The policy update: optimizer steps over one step's experience."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightrft.algorithms.kl import FixedKLController, KLEstimator, kl_estimate
from lightrft.algorithms.losses._common import LossOptions, log_ratio
from lightrft.algorithms.masking import (
    LossAggMode,
    aggregate_loss,
    loss_denominator,
    masked_max,
    masked_sum,
)
from lightrft.algorithms.schedule import Schedule, learning_rate
from lightrft.data.batching import forward_order, micro_batches, step_slices
from lightrft.distributed.collectives import all_ranks, reduce_sum, world_size
from lightrft.distributed.strategy import TrainableModel
from lightrft.errors import TrainingError
from lightrft.trainer.metrics import MetricSums
from lightrft.types import Experience, LossInputs, LossOutputs

PolicyLoss = Callable[[LossInputs, LossOptions], LossOutputs]


@dataclass(frozen=True)
class UpdateOptions:
    """The flags of the update. Batch sizes are this rank's."""

    local_train_batch_size: int
    micro_batch_size: int
    max_epochs: int
    learning_rate: float
    warmup_steps: int
    total_steps: int
    lr_scheduler: Schedule = "constant"
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    max_response_len: int = 2048
    loss: LossOptions = field(default_factory=LossOptions)
    use_kl_loss: bool = False
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0
    max_skipped_steps: int = 10


@dataclass
class UpdateCounters:
    """What a resumed run must know of the updates before it."""

    optimizer_steps: int = 0  # taken; skipped ones do not count and do not move the learning rate
    skipped_steps: int = 0
    skipped_in_a_row: int = 0


class PolicyUpdater:
    """Runs `max_epochs` passes of optimizer steps over an experience."""

    def __init__(
        self,
        policy: TrainableModel,
        policy_loss: PolicyLoss,
        kl_controller: FixedKLController,
        options: UpdateOptions,
        device: torch.device,
    ) -> None:
        self.policy = policy
        self.policy_loss = policy_loss
        self.kl_controller = kl_controller
        self.options = options
        self.device = device
        self.counters = UpdateCounters()

    def update(self, experience: Experience) -> MetricSums:
        """Every optimizer step of one experience. Collective; raises the same error on all ranks."""
        metrics = MetricSums()
        first = True
        for _ in range(self.options.max_epochs):
            for rows in step_slices(len(experience), self.options.local_train_batch_size):
                self._optimizer_step(experience.select(rows), metrics, first)
                first = False
        metrics.add("train/skipped_steps", float(self.counters.skipped_steps))
        return metrics

    def _optimizer_step(self, batch: Experience, metrics: MetricSums, first: bool) -> None:
        """One step: the summed losses of its micro-batches over one denominator, counted over all ranks."""
        mode = self.options.loss_agg_mode
        denominator = reduce_sum(loss_denominator(batch.response_mask.to(self.device), mode))
        if denominator == 0:  # every sample was excluded, on all ranks: there is nothing to learn from
            return
        parts = list(micro_batches(forward_order(batch.attention_mask), self.options.micro_batch_size))
        for i, rows in enumerate(parts):
            loss = self._loss(batch.select(rows).to(self.device), metrics, first) / denominator
            finite = all_ranks(bool(torch.isfinite(loss)), self.device)
            if finite:  # shares of micro-batches and ranks add up to one loss per optimizer step
                metrics.add("policy/loss", loss, 1.0 / (len(parts) * world_size()))
            self.policy.backward(loss, last=i == len(parts) - 1, finite=finite)
            if not finite:
                break
        self._step(metrics)

    def _step(self, metrics: MetricSums) -> None:
        o, counters = self.options, self.counters
        rate = learning_rate(
            counters.optimizer_steps, o.learning_rate, o.warmup_steps, o.total_steps, o.lr_scheduler
        )
        result = self.policy.step(rate)
        metrics.add("policy/lr", rate)
        if not result.skipped:
            counters.optimizer_steps += 1
            counters.skipped_in_a_row = 0
            metrics.add("policy/grad_norm", result.grad_norm)
            return
        counters.skipped_steps += 1
        counters.skipped_in_a_row += 1
        if counters.skipped_in_a_row >= o.max_skipped_steps:
            raise TrainingError(
                f"{counters.skipped_in_a_row} optimizer steps in a row had a loss or gradient that is not "
                f"finite (--max_skipped_steps {o.max_skipped_steps}): lower --actor_learning_rate "
                f"({o.learning_rate}) or --max_norm, or look at the rewards and log-probs of the last step"
            )

    def _loss(self, batch: Experience, metrics: MetricSums, first: bool) -> Tensor:
        """The summed loss of a micro-batch: policy loss, plus KL, minus entropy, each by the same weights."""
        o = self.options
        scored = self.policy(
            batch.input_ids, batch.attention_mask, batch.response_mask, with_entropy=o.entropy_coef != 0
        )
        assert batch.old_logprobs is not None and batch.advantages is not None
        inputs = LossInputs(
            logprobs=scored.logprobs,
            old_logprobs=batch.old_logprobs,
            advantages=batch.advantages,
            response_mask=batch.response_mask,
            entropy=scored.entropy,
            ref_logprobs=batch.ref_logprobs,
            rollout_logprobs=batch.rollout_logprobs,
        )
        outputs = self.policy_loss(inputs, o.loss)
        losses = outputs.token_losses
        if o.use_kl_loss and batch.ref_logprobs is not None:
            kl = kl_estimate(scored.logprobs, batch.ref_logprobs, o.kl_estimator)
            losses = losses + self.kl_controller.coef * kl
        if o.entropy_coef:
            losses = losses - o.entropy_coef * scored.entropy
        for name, (total, count) in outputs.metrics.items():
            metrics.add(f"policy/{name}", total, count)
        _add_ratio_metrics(inputs, metrics, first)
        return aggregate_loss(losses, batch.response_mask, o.loss_agg_mode, o.max_response_len)


@torch.no_grad()
def _add_ratio_metrics(inputs: LossInputs, metrics: MetricSums, first: bool) -> None:
    """Ratio and KL to the policy before the update; on the first optimizer step they must be 1 and 0."""
    mask = inputs.response_mask
    log = log_ratio(inputs.logprobs, inputs.old_logprobs, mask)
    ratio = log.exp()
    approx_kl = masked_sum(kl_estimate(inputs.logprobs, inputs.old_logprobs, "k3"), mask)
    metrics.add("policy/ratio_mean", masked_sum(ratio, mask), mask.sum())
    metrics.add("policy/approx_kl", approx_kl, mask.sum())
    metrics.add_max("policy/ratio_max", masked_max(ratio, mask))
    if first:
        metrics.add_max("policy/ratio_max_deviation", masked_max((ratio - 1).abs(), mask))
        metrics.add("policy/first_kl", approx_kl, mask.sum())


def optimizer_steps_per_update(num_samples: int, train_batch_size: int, max_epochs: int) -> int:
    """How many optimizer steps `num_samples` (over all ranks) make."""
    return math.ceil(num_samples / train_batch_size) * max_epochs
