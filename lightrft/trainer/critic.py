"""The critic's update, for `--advantage_estimator gae`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lightrft.algorithms.masking import masked_sum
from lightrft.algorithms.value_loss import value_loss
from lightrft.distributed.collectives import barrier, rank
from lightrft.models.critic import Critic, save_critic
from lightrft.trainer.checkpoint import replace_folder
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.optimize import Optimizer
from lightrft.trainer.update import BatchOptions
from lightrft.types import Experience


class CriticUpdater:
    """Fits values to returns, in as many optimizer steps as the policy takes; the mean is over tokens.

    `tokenizer` (or processor) is saved beside the critic; None: `--save_value_network` is off.
    """

    def __init__(
        self, optimizer: Optimizer, batch_options: BatchOptions, value_clip: float, tokenizer: Any = None
    ) -> None:
        self.tokenizer = tokenizer
        self.optimizer = optimizer
        self.batch_options = replace(batch_options, loss_agg_mode="token-mean")
        self.value_clip = value_clip

    def update(self, experience: Experience) -> MetricSums:
        """Every optimizer step of one experience. Collective; raises the same error on all ranks."""
        metrics = MetricSums()
        for batch in self.batch_options.batches(experience):
            denominator = self.batch_options.denominator(batch, self.optimizer.device)
            if denominator == 0:  # every sample was excluded, on all ranks
                continue
            losses: list[Callable[[], Tensor]] = [
                partial(self._loss, part, denominator, metrics) for part in self.batch_options.parts(batch)
            ]
            self.optimizer.step(losses, metrics)
        return metrics

    def export(self, folder: Path) -> None:
        """Write the critic as a folder that `--critic_pretrain` takes, replaced as a whole. Collective."""
        if self.tokenizer is None:
            return
        model = self.optimizer.model
        assert isinstance(model.module, Critic)
        state = {}
        for name, parameter in model.full_parameters():
            if rank() == 0:
                state[name] = parameter.cpu()
        if rank() == 0:
            temporary = folder.with_name(f".tmp_{folder.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            save_critic(temporary, state, model.module, self.tokenizer)
            replace_folder(temporary, folder)
        barrier()

    def _loss(self, part: Experience, denominator: Tensor, metrics: MetricSums) -> Tensor:
        batch = part.to(self.optimizer.device)
        values = self.optimizer.model(
            batch.input_ids,
            batch.attention_mask,
            batch.response_mask,
            position_ids=batch.position_ids,
            multimodal=batch.multimodal,
        )
        assert batch.values is not None and batch.returns is not None
        losses, clipped = value_loss(
            values, batch.values, batch.returns, batch.response_mask, self.value_clip
        )
        metrics.add("critic/clip_fraction", *clipped)
        error = (values.detach() - batch.returns).square()
        metrics.add("critic/error", masked_sum(error, batch.response_mask), batch.response_mask.sum())
        return self.batch_options.aggregate(losses, batch.response_mask) / denominator
