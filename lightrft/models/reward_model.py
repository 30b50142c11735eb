"""A reward model: a decoder with one label, whose score of a text is read where the text ends.

    input_ids ─► decoder ─► hidden [B, T, D] ─► row of the last token by the mask [B, D] ─► head ─► [B]

The classifiers of transformers find that row by comparing ids with `pad_token_id`, which reads a text that
ends in the pad id (commonly the end token) too early. The mask is right for every text, and for padding on
either side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from lightrft.config.model_files import REWARD_HEAD, reward_model_problem
from lightrft.data.batching import micro_batches
from lightrft.distributed.collectives import reduce_max
from lightrft.distributed.strategy import Parked
from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions, load_model, read_model_config

FILLER = (0,)  # a text for a rank that has none


class RewardModel(nn.Module):
    """Scores of whole texts, by a model that is not trained."""

    def __init__(self, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        head = getattr(model, REWARD_HEAD)
        if isinstance(head, nn.Linear):
            head.forward = partial(_in_float32, head)  # type: ignore[method-assign]
        self.eval().to(device)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """`input_ids`, `attention_mask` `[B, T]` int64, padded on either side -> scores `[B]` float32.

        They are logits: no activation is applied. A score that is not finite is given as it is.

        Raises:
            ValueError: a row without any token.
        """
        last = last_kept(attention_mask)
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        output = self.model.base_model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        )
        rows = torch.arange(len(last), device=last.device)
        return getattr(self.model, REWARD_HEAD)(output.last_hidden_state[rows, last]).float().squeeze(-1)


def _in_float32(head: nn.Linear, hidden: Tensor) -> Tensor:
    """`hidden [B, D]` -> `[B, 1]` float32: bfloat16 would make scores between 8 and 16 multiples of 1/16, and
    ties of samples that differ.
    """
    return F.linear(hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float())


def last_kept(attention_mask: Tensor) -> Tensor:
    """`[B, T]` of 0 and 1 -> `[B]` int64: the index of the last 1 of each row.

    Raises:
        ValueError: a row has none.
    """
    empty = (attention_mask.sum(-1) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"rows {empty} of {len(attention_mask)} have no token to score")
    order = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return torch.where(attention_mask.bool(), order, -1).amax(-1)


class ModuleScorer:
    """Scores texts with a reward model that is on the device only meanwhile."""

    def __init__(self, parked: Parked, micro_batch_size: int, device: torch.device | str) -> None:
        self._parked = parked
        self._micro_batch_size = micro_batch_size
        self._device = device

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Token ids of each text (none is empty) -> its score, not necessarily finite, in their order.

        Collective: under ZeRO-3 every forward gathers weights from all ranks. So all take as many
        micro-batches as the rank with the most; one that has run out of texts goes on with a filler.
        """
        longest_first = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        parts = list(micro_batches(longest_first, self._micro_batch_size))
        rounds = int(reduce_max(torch.tensor(len(parts), device=self._device)))
        scores = [math.nan] * len(texts)
        if not rounds:
            return scores
        with self._parked() as module:
            for rows in [*parts, *[[]] * (rounds - len(parts))]:
                batch = _padded([texts[i] for i in rows] or [FILLER], self._device)
                for i, score in zip(rows, module(*batch).tolist(), strict=False):
                    scores[i] = score
        return scores

    def close(self) -> None:
        """Nothing to end."""


def _padded(texts: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Right-padded ids and mask `[B, T]` int64. What stands in the padding is never read."""
    width = max(len(text) for text in texts)
    ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    return ids.to(device), mask.to(device)


class _WholeClassifier:
    """Takes a checkpoint only if it has every weight: a head made up at random would give scores, too."""

    @staticmethod
    def from_pretrained(path: str, **settings: Any) -> PreTrainedModel:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            path, output_loading_info=True, **settings
        )
        missing = sorted(info["missing_keys"])
        if missing:
            raise ValueError(f"the checkpoint lacks {len(missing)} weights of the model: {missing[0]}, ...")
        return model


def load_reward_model(options: ModelOptions, device: torch.device | str = "cpu") -> RewardModel:
    """The sequence-classification checkpoint at `options.path`, frozen, without dropout.

    Raises:
        ModelError: no such checkpoint, other than one label, no decoder's head, or weights that are missing.
    """
    config = read_reward_config(options.path, options.trust_remote_code, options.flag)
    model = load_model(options, _WholeClassifier, config)
    if not isinstance(getattr(model, REWARD_HEAD, None), nn.Module):
        raise ModelError(
            f"{options.flag} {options.path}: {type(model).__name__} has no head named {REWARD_HEAD!r}: "
            "a reward model is a decoder with a head on its last token"
        )
    return RewardModel(model, device)


def read_reward_config(path: str, trust_remote_code: bool = False, flag: str = "--reward_pretrain") -> Any:
    """The config of the reward model at `path`.

    Raises:
        ModelError: missing, unreadable, or not that of a sequence-classification checkpoint with one label.
    """
    config = read_model_config(path, trust_remote_code, flag)
    problem = reward_model_problem(config.architectures or [], config.num_labels)
    if problem:
        raise ModelError(f"{flag} {path}: {problem}")
    return config
