"""PTX (InstructGPT, arXiv 2203.02155, eq. 2): a language-model loss on pretraining texts beside the policy's.

It stands in the same optimizer steps, so that what the policy has learnt from text is not unlearnt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from lightrft.data.batching import micro_batches
from lightrft.data.sampler import rank_share
from lightrft.data.texts import TextSampler, collate_texts
from lightrft.distributed.collectives import rank, reduce_sum, world_size
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.optimize import Optimizer


class PTXLoss:
    """coefficient x mean cross-entropy per token, over `batch_size` texts (of all ranks) a step."""

    def __init__(
        self,
        texts: Sequence[list[int]],
        sampler: TextSampler,
        coef: float,
        batch_size: int,
        micro_batch_size: int,
        pad_token_id: int,
    ) -> None:
        self.texts = texts
        self.sampler = sampler
        self.coef = coef
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.pad_token_id = pad_token_id

    def losses(self, optimizer: Optimizer, metrics: MetricSums) -> list[Callable[[], Tensor]]:
        """One closure per micro-batch of the next step's texts; the step's number alone decides the draw."""
        counters = optimizer.counters
        number = counters.optimizer_steps + counters.skipped_steps
        rows = rank_share(self.sampler.draw(number, self.batch_size), rank(), world_size())
        parts = [
            tuple(t.to(optimizer.device) for t in self._collate(part))
            for part in micro_batches(rows, self.micro_batch_size)
        ]
        tokens = reduce_sum(torch.stack([mask.sum() for *_, mask in parts]).sum())
        return [partial(self._loss, optimizer, part, tokens, metrics) for part in parts]

    def _collate(self, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        return collate_texts([self.texts[i] for i in rows], self.pad_token_id)

    def _loss(
        self, optimizer: Optimizer, part: tuple[Tensor, ...], tokens: Tensor, metrics: MetricSums
    ) -> Tensor:
        input_ids, attention_mask, loss_mask = part
        scored = optimizer.model(input_ids, attention_mask, loss_mask, temperature=1.0)
        total = -scored.logprobs.sum()
        metrics.add("ptx/loss", total, loss_mask.sum())
        return self.coef * total / tokens
