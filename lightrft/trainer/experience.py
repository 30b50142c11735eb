"""From rollouts and rewards to a batch that is ready to train on: log-probs, KL, advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightrft.algorithms.advantages._common import AdvantageInputs, AdvantageOutputs, zero_spread_groups
from lightrft.algorithms.kl import FixedKLController, KLEstimator, kl_estimate
from lightrft.algorithms.masking import masked, masked_max, masked_sum
from lightrft.algorithms.shaping import clip_symmetric, whiten
from lightrft.data.batching import collate, forward_order, micro_batches
from lightrft.distributed.collectives import reduce_sum
from lightrft.distributed.strategy import TrainableModel
from lightrft.models.policy import Policy
from lightrft.trainer.metrics import MetricSums
from lightrft.types import Experience, RewardResult, Rollout

Estimator = Callable[[AdvantageInputs], AdvantageOutputs]


@dataclass(frozen=True)
class ExperienceOptions:
    """The flags that shape experience."""

    micro_batch_size: int
    gamma: float = 1.0
    group_std: bool = True
    reward_clip: float = 0.0
    advantages_norm: bool = False
    advantage_clip: float = 0.0
    kl_in_reward: bool = False
    kl_estimator: KLEstimator = "k3"


class ExperienceMaker:
    """Turns one step's rollouts of this rank into an `Experience`, and measures them on the way."""

    def __init__(
        self,
        policy: TrainableModel,
        reference: Policy | None,
        estimator: Estimator,
        kl_controller: FixedKLController,
        options: ExperienceOptions,
        tokenizer: Any,
        device: torch.device,
    ) -> None:
        self.policy = policy
        self.reference = reference
        self.estimator = estimator
        self.kl_controller = kl_controller
        self.options = options
        self.pad_token_id = int(tokenizer.pad_token_id)
        self.device = device

    def make(self, rollouts: Sequence[Rollout], result: RewardResult) -> tuple[Experience, MetricSums]:
        """All of this rank's samples of a step -> experience on the CPU, advantages included."""
        experience = collate(rollouts, result, self.pad_token_id)
        metrics = rollout_metrics(rollouts, result, experience)
        experience.old_logprobs = self._logprobs(self.policy.module, experience, metrics)
        if self.reference is not None:
            experience.ref_logprobs = self._logprobs(self.reference, experience, None)
            kl = self._kl(experience)
            metrics.add("policy/kl", masked_sum(kl, experience.response_mask), experience.response_mask.sum())
        experience.advantages = self._advantages(experience)
        _add_gap_metrics(experience, metrics)
        _add_advantage_metrics(experience, metrics)
        return experience, metrics

    @torch.no_grad()
    def _logprobs(self, model: Any, experience: Experience, metrics: MetricSums | None) -> Tensor:
        """Log-probs `[B, T]` by `model`; its entropy is collected where `metrics` is given."""
        out = torch.zeros_like(experience.response_mask)
        for rows in micro_batches(forward_order(experience.attention_mask), self.options.micro_batch_size):
            part = experience.select(rows).to(self.device)
            scored = model(
                part.input_ids, part.attention_mask, part.response_mask, with_entropy=metrics is not None
            )
            out[rows, : part.input_ids.shape[1]] = scored.logprobs.cpu()
            if metrics is not None:
                metrics.add("policy/entropy", scored.entropy.sum(), part.response_mask.sum())
        return out

    def _kl(self, experience: Experience) -> Tensor:
        assert experience.old_logprobs is not None and experience.ref_logprobs is not None
        kl = kl_estimate(experience.old_logprobs, experience.ref_logprobs, self.options.kl_estimator)
        return masked(kl, experience.response_mask)

    def _advantages(self, experience: Experience) -> Tensor:
        """Reward clip, estimator, whitening, advantage clip, in that order; each at most once."""
        token_rewards = torch.zeros_like(experience.response_mask)
        if self.options.kl_in_reward and self.reference is not None:
            token_rewards = -self.kl_controller.coef * self._kl(experience)
        outputs = self.estimator(
            AdvantageInputs(
                rewards=clip_symmetric(experience.rewards, self.options.reward_clip),
                group_ids=experience.group_ids,
                response_mask=experience.response_mask,
                token_rewards=token_rewards,
                gamma=self.options.gamma,
                group_std=self.options.group_std,
            )
        )
        advantages = outputs.advantages
        if self.options.advantages_norm:
            advantages = whiten(
                advantages.to(self.device), experience.response_mask.to(self.device), reduce_sum
            )
            advantages = advantages.cpu()
        return clip_symmetric(advantages, self.options.advantage_clip)


def rollout_metrics(rollouts: Sequence[Rollout], result: RewardResult, experience: Experience) -> MetricSums:
    """What can be said of rollouts before any model looks at them."""
    metrics = MetricSums()
    n = len(rollouts)
    scored = [r for r in result.rewards if r is not None]
    metrics.add("rollout/reward", sum(scored), len(scored))
    metrics.add("rollout/pass_rate", sum(passed(result, i) for i in range(n)), len(scored))
    metrics.add("rollout/response_length", sum(len(r.token_ids) for r in rollouts), n)
    metrics.add("rollout/truncated_share", sum(r.finish_reason == "length" for r in rollouts), n)
    metrics.add("rollout/unparsed_share", sum(s == "unparsed" for s in result.statuses), n)
    metrics.add("rollout/excluded_share", n - len(scored), n)
    tied, groups = zero_spread_groups(experience.rewards, experience.group_ids)
    metrics.add("rollout/zero_spread_share", tied, groups)
    for name, values in result.parts.items():
        known = [v for v in values if v is not None]
        metrics.add(f"reward/{name}", sum(known), len(known))
    return metrics


def passed(result: RewardResult, i: int) -> bool:
    """Did response `i` solve its task?

    A part called `answer` decides where there is one (a format bonus is no solution); else the first of
    several rewards, unweighted; else the reward itself. It must reach 1.
    """
    answers = [name for name in result.parts if name.rpartition("/")[2] == "answer"]
    name = next(iter(answers or result.parts), None)
    value = result.rewards[i] if name is None else result.parts[name][i]
    return value is not None and value >= 1.0 - 1e-6


def _add_gap_metrics(experience: Experience, metrics: MetricSums) -> None:
    """How far the engine's log-probs are from the trainer's, on the tokens for which the engine gave any."""
    assert experience.old_logprobs is not None and experience.rollout_logprobs is not None
    known = experience.response_mask.bool() & ~experience.rollout_logprobs.isnan()
    gap = masked((experience.old_logprobs - experience.rollout_logprobs).abs(), known)
    metrics.add("rollout/logprob_gap_mean", gap.sum(), known.sum())
    metrics.add_max("rollout/logprob_gap_max", masked_max(gap, known))


def _add_advantage_metrics(experience: Experience, metrics: MetricSums) -> None:
    assert experience.advantages is not None
    mask, advantages = experience.response_mask, experience.advantages
    metrics.add("policy/advantage_mean", masked_sum(advantages, mask), mask.sum())
    metrics.add("policy/advantage_abs_mean", masked_sum(advantages.abs(), mask), mask.sum())
    metrics.add_total("train/tokens", mask.sum())
