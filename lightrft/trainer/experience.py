"""From rollouts and rewards to a batch that is ready to train on: log-probs, values, KL, advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightrft.algorithms.advantages._common import AdvantageInputs
from lightrft.algorithms.components import Estimator
from lightrft.algorithms.correction import CorrectionMode, correction_weights
from lightrft.algorithms.filtering import entropy_threshold, high_entropy_mask
from lightrft.algorithms.kl import KLController, KLEstimator, kl_estimate
from lightrft.algorithms.masking import masked, masked_sum
from lightrft.algorithms.shaping import RunningMoments, clip_symmetric, overlong_penalty, whiten
from lightrft.data.batching import collate
from lightrft.distributed.collectives import reduce_max, reduce_sum
from lightrft.distributed.strategy import TrainableModel
from lightrft.models.policy import Policy
from lightrft.models.scoring import score_tokens, score_tokens_each
from lightrft.models.teacher import LocalTeacher, Teacher
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.rollout_metrics import add_advantage_metrics, add_gap_metrics, rollout_metrics
from lightrft.types import Experience, Prompt, RewardResult, Rollout


@dataclass(frozen=True)
class Models:
    """Whoever has something to say about a response. None: the run has no use for it."""

    policy: TrainableModel
    reference: Policy | None = None
    critic: TrainableModel | None = None
    teacher: Teacher | None = None


@dataclass(frozen=True)
class ShapingOptions:
    """What happens to the task's rewards, in this order: overlong penalty, running normalisation, clip."""

    overlong_buffer_len: int = 0  # 0: no penalty
    overlong_penalty_factor: float = 1.0
    max_response_len: int = 2048
    running_norm: bool = False
    running_norm_minus_mean: bool = False
    reward_clip: float = 0.0


@dataclass(frozen=True)
class ExperienceOptions:
    """The flags that shape experience."""

    micro_batch_size: int
    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    gamma: float = 1.0
    lambd: float = 0.95
    group_std: bool = True
    advantages_norm: bool = False
    advantage_clip: float = 0.0
    kl_in_reward: bool = False
    kl_estimator: KLEstimator = "k3"
    rollout_is: CorrectionMode = "none"
    rollout_is_cap: float = 2.0
    high_entropy_token_ratio: float = 0.0
    opd_kl_coef: float = 1.0
    task_reward: bool = True


class ExperienceMaker:
    """Turns one step's rollouts of this rank into an `Experience`, and measures them on the way."""

    def __init__(
        self,
        models: Models,
        estimator: Estimator,
        kl_controller: KLController,
        options: ExperienceOptions,
        pad_token_id: int,
        device: torch.device,
        features: Callable[[Prompt], dict[str, Tensor]] | None = None,
    ) -> None:
        self.features = features
        self.models = models
        self.estimator = estimator
        self.kl_controller = kl_controller
        self.options = options
        self.pad_token_id = pad_token_id
        self.device = device
        self.moments = RunningMoments()

    def make(self, rollouts: Sequence[Rollout], result: RewardResult) -> tuple[Experience, MetricSums]:
        """All of this rank's samples of a step -> experience on the CPU, advantages included."""
        experience = collate(rollouts, result, self.pad_token_id, self.features)
        if any(experience.multimodal):
            experience.position_ids = self.models.policy.module.positions(experience)  # type: ignore[operator]
        metrics = rollout_metrics(rollouts, result, experience)
        entropy = self._score(experience)
        mask = experience.response_mask
        metrics.add("policy/entropy", masked_sum(entropy, mask), mask.sum())
        if experience.ref_logprobs is not None:
            metrics.add("policy/kl", self._kl(experience).sum(), mask.sum())
        rewards = self._shape(experience, metrics)
        self._add_advantages(experience, rewards)
        experience.loss_weights = self._loss_weights(experience, entropy, metrics)
        add_gap_metrics(experience, metrics, self.options.rollout_is_cap, self.device)
        add_advantage_metrics(experience, metrics)
        return experience, metrics

    def _score(self, experience: Experience) -> Tensor:
        """Fill in what each model says of the responses; returns the policy's entropy `[B, T]`."""
        models, size = self.models, self.options.micro_batch_size
        policy = models.policy.module
        experience.old_logprobs, entropy = score_tokens_each(
            lambda part: policy(
                part.input_ids,
                part.attention_mask,
                part.response_mask,
                with_entropy=True,
                position_ids=part.position_ids,
                multimodal=part.multimodal,
            ),
            experience,
            size,
            self.device,
        )
        if models.reference is not None:
            reference = LocalTeacher(models.reference, size, self.device)
            experience.ref_logprobs = reference.logprobs(experience)
        if models.critic is not None:
            critic = models.critic.module
            experience.values = score_tokens(
                lambda part: critic(
                    part.input_ids,
                    part.attention_mask,
                    part.response_mask,
                    part.position_ids,
                    part.multimodal,
                ),
                experience,
                size,
                self.device,
            )
        return entropy

    def _kl(self, experience: Experience) -> Tensor:
        """KL of each response token before the update, `[B, T]`."""
        assert experience.old_logprobs is not None and experience.ref_logprobs is not None
        kl = kl_estimate(experience.old_logprobs, experience.ref_logprobs, self.options.kl_estimator)
        return masked(kl, experience.response_mask)

    def _shape(self, experience: Experience, metrics: MetricSums) -> Tensor:
        """The task's rewards `[B]` after overlong penalty, running normalisation and clip."""
        o, rewards = self.options.shaping, experience.rewards
        if o.overlong_buffer_len:
            lengths = experience.response_mask.sum(-1)
            penalty = overlong_penalty(
                lengths, o.max_response_len, o.overlong_buffer_len, o.overlong_penalty_factor
            )
            metrics.add("shaping/overlong_share", (penalty < 0).sum(), len(penalty))
            rewards = rewards + penalty
        if o.running_norm:
            self.moments.update(rewards.to(self.device), reduce_sum)
            rewards = self.moments.normalise(rewards, o.running_norm_minus_mean)
        rewards = clip_symmetric(rewards, o.reward_clip)
        known = ~rewards.isnan()
        metrics.add("shaping/reward_after", masked(rewards, known).sum(), known.sum())
        return rewards

    def _add_advantages(self, experience: Experience, rewards: Tensor) -> None:
        """Estimator, whitening, clip: each at most once."""
        o, mask = self.options, experience.response_mask
        token_rewards = torch.zeros_like(mask)
        kl_in_reward = o.kl_in_reward or self.estimator.kl_in_reward
        if kl_in_reward and experience.ref_logprobs is not None:
            token_rewards = -self.kl_controller.coef * self._kl(experience)
        teacher = self.models.teacher
        outputs = self.estimator.compute(
            AdvantageInputs(
                rewards=rewards,
                group_ids=experience.group_ids,
                response_mask=mask,
                token_rewards=token_rewards,
                gamma=o.gamma,
                group_std=o.group_std,
                values=experience.values,
                lambd=o.lambd,
                old_logprobs=experience.old_logprobs,
                teacher_logprobs=None if teacher is None else teacher.logprobs(experience),
                opd_kl_coef=o.opd_kl_coef,
                task_reward=o.task_reward,
            )
        )
        advantages = outputs.advantages
        if o.advantages_norm or self.estimator.whitens:
            advantages = whiten(advantages.to(self.device), mask.to(self.device), reduce_sum).cpu()
        experience.advantages = clip_symmetric(advantages, o.advantage_clip)
        experience.returns = outputs.returns

    def _loss_weights(self, experience: Experience, entropy: Tensor, metrics: MetricSums) -> Tensor | None:
        """The weight of each token's policy loss `[B, T]`, or None where all are 1."""
        o, mask = self.options, experience.response_mask
        if o.rollout_is == "none" and not o.high_entropy_token_ratio:
            return None
        weights = torch.ones_like(mask)
        assert experience.old_logprobs is not None and experience.rollout_logprobs is not None
        if o.rollout_is != "none":
            weights = correction_weights(
                experience.old_logprobs, experience.rollout_logprobs, mask, o.rollout_is, o.rollout_is_cap
            )
            metrics.add("policy/correction_weight", masked_sum(weights, mask), mask.sum())
        if o.high_entropy_token_ratio:
            on_device = entropy.to(self.device), mask.to(self.device)
            threshold = entropy_threshold(*on_device, o.high_entropy_token_ratio, reduce_sum, reduce_max)
            kept = high_entropy_mask(entropy, mask, threshold)
            metrics.add("policy/filtered_share", mask.sum() - kept.sum(), mask.sum())
            weights = weights * kept
        return weights
