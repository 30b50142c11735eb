"""A reward model: a decoder with one label, whose score of a text is read where the text ends.

    input_ids ─► decoder ─► hidden [B, T, D] ─► row of the last token by the mask [B, D] ─► head ─► [B]

The classifiers of transformers find that row by comparing ids with `pad_token_id`, which reads a text that
ends in the pad id (commonly the end token) too early. The mask is right for every text, and for padding on
either side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions, load_model_config, load_trainable

ARCHITECTURE = "ForSequenceClassification"
HEAD = "score"  # what transformers calls the head of a classifier made of a decoder


class RewardModel(nn.Module):
    """Scores of whole texts, by a model that is not trained."""

    def __init__(self, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
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
        return getattr(self.model, HEAD)(output.last_hidden_state[rows, last]).float().squeeze(-1)


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
    config = load_model_config(options.path, options.trust_remote_code, options.flag)
    fault = _config_fault(config)
    if fault:
        raise ModelError(f"{options.flag} {options.path}: {fault}")
    model = load_trainable(options, _WholeClassifier)
    if not isinstance(getattr(model, HEAD, None), nn.Module):
        raise ModelError(
            f"{options.flag} {options.path}: {type(model).__name__} has no head named {HEAD!r}: "
            "a reward model is a decoder with a head on its last token"
        )
    return RewardModel(model, device)


def _config_fault(config: Any) -> str:
    """Why a model of this config gives no score; "" where it does."""
    architectures = config.architectures or []
    if not any(name.endswith(ARCHITECTURE) for name in architectures):
        return (
            f"architectures are {architectures}, and a reward model is a ...{ARCHITECTURE} checkpoint: "
            "from another one its head would be made up at random"
        )
    if config.num_labels != 1:
        return f"the checkpoint has {config.num_labels} labels; a reward model has 1"
    return ""
