"""The updates of one step's experience: optimizer steps of the policy and, with one, the critic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from lightrft.algorithms.components import PolicyLoss
from lightrft.algorithms.kl import KLController, KLEstimator, kl_estimate
from lightrft.algorithms.losses._common import LossOptions, log_ratio
from lightrft.algorithms.masking import (
    LossAggMode,
    aggregate_loss,
    loss_denominator,
    masked_max,
    masked_sum,
)
from lightrft.data.batching import forward_order, micro_batches, step_slices
from lightrft.distributed.collectives import reduce_sum
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.optimize import Optimizer
from lightrft.types import Experience, LossInputs


class AuxiliaryLoss(Protocol):
    """A loss beside the policy's in the same optimizer steps (PTX)."""

    def losses(self, optimizer: Optimizer, metrics: MetricSums) -> list[Callable[[], Tensor]]:
        """The micro-batches of the next optimizer step; as many on every rank."""


@dataclass(frozen=True)
class BatchOptions:
    """How an experience is cut, on this rank."""

    local_train_batch_size: int
    micro_batch_size: int
    max_epochs: int
    loss_agg_mode: LossAggMode = "seq-mean-token-mean"
    max_response_len: int = 2048

    def batches(self, experience: Experience) -> Iterator[Experience]:
        """The samples of each optimizer step, `max_epochs` times over."""
        for _ in range(self.max_epochs):
            for rows in step_slices(len(experience), self.local_train_batch_size):
                yield experience.select(rows)

    def parts(self, batch: Experience) -> list[Experience]:
        """The micro-batches of an optimizer step, longest samples first."""
        rows = micro_batches(forward_order(batch.attention_mask), self.micro_batch_size)
        return [batch.select(part) for part in rows]

    def denominator(self, batch: Experience, device: torch.device) -> Tensor:
        """What the summed losses of all ranks' micro-batches are divided by; 0 where all is excluded."""
        return reduce_sum(loss_denominator(batch.response_mask.to(device), self.loss_agg_mode))

    def aggregate(self, token_losses: Tensor, mask: Tensor) -> Tensor:
        return aggregate_loss(token_losses, mask, self.loss_agg_mode, self.max_response_len)


@dataclass(frozen=True)
class PolicyOptions:
    """The flags of the policy's loss."""

    loss: LossOptions = field(default_factory=LossOptions)
    use_kl_loss: bool = False
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0


class PolicyUpdater:
    """Policy loss, plus KL, minus entropy, plus whatever stands beside it."""

    def __init__(
        self,
        optimizer: Optimizer,
        policy_loss: PolicyLoss,
        kl_controller: KLController,
        batch_options: BatchOptions,
        options: PolicyOptions,
        auxiliary: AuxiliaryLoss | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.policy_loss = policy_loss
        self.kl_controller = kl_controller
        self.batch_options = batch_options
        self.options = options
        self.auxiliary = auxiliary
        self.after_step = after_step  # called when the weights have moved (EMA)

    def update(self, experience: Experience) -> MetricSums:
        """Every optimizer step of one experience. Collective; raises the same error on all ranks."""
        metrics = MetricSums()
        for number, batch in enumerate(self.batch_options.batches(experience)):
            self._optimizer_step(batch, metrics, first=number == 0)
        metrics.add("train/skipped_steps", float(self.optimizer.counters.skipped_steps))
        return metrics

    def _optimizer_step(self, batch: Experience, metrics: MetricSums, first: bool) -> None:
        denominator = self.batch_options.denominator(batch, self.optimizer.device)
        if denominator == 0:  # every sample was excluded, on all ranks: there is nothing to learn from
            return
        parts = self.batch_options.parts(batch)
        losses: list[Callable[[], Tensor]] = [
            partial(self._loss, part, denominator, metrics, first) for part in parts
        ]
        if self.auxiliary is not None:
            losses += self.auxiliary.losses(self.optimizer, metrics)
        if self.optimizer.step(losses, metrics) and self.after_step is not None:
            self.after_step()

    def _loss(self, part: Experience, denominator: Tensor, metrics: MetricSums, first: bool) -> Tensor:
        """This micro-batch's share of the step's loss."""
        batch = part.to(self.optimizer.device)
        wants_entropy = self.options.entropy_coef != 0
        scored = self.optimizer.model(
            batch.input_ids,
            batch.attention_mask,
            batch.response_mask,
            with_entropy=wants_entropy,
            position_ids=batch.position_ids,
            multimodal=batch.multimodal,
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
        outputs = self.policy_loss(inputs, self.options.loss)
        losses = outputs.token_losses
        if batch.loss_weights is not None:
            losses = losses * batch.loss_weights
        losses = losses + self._regularisation(inputs)
        for name, (total, count) in outputs.metrics.items():
            metrics.add(f"policy/{name}", total, count)
        _add_ratio_metrics(inputs, metrics, first)
        return self.batch_options.aggregate(losses, batch.response_mask) / denominator

    def _regularisation(self, inputs: LossInputs) -> Tensor:
        """KL to the reference and entropy bonus, `[B, T]`: on every response token, whatever its weight."""
        o = self.options
        out = torch.zeros_like(inputs.logprobs)
        if o.use_kl_loss and inputs.ref_logprobs is not None:
            kl = kl_estimate(inputs.logprobs, inputs.ref_logprobs, o.kl_estimator)
            out = out + self.kl_controller.coef * kl
        if o.entropy_coef and inputs.entropy is not None:
            out = out - o.entropy_coef * inputs.entropy
        return out


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
