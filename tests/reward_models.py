"""Tiny reward models for tests, with scores of the size of 1, so that a tolerance means something."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

PAD = 0


def make_reward_model(base: Path, folder: Path, labels: int = 1, seed: int = 5, **config: object) -> Path:
    """A random classifier of the shape of `base`, with its tokenizer."""
    settings = AutoConfig.from_pretrained(base, num_labels=labels, pad_token_id=PAD, **config)
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(settings)
    with torch.no_grad():
        model.score.weight.normal_()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


@torch.no_grad()
def scores_by_hand(folder: Path, texts: list[list[int]]) -> torch.Tensor:
    """Each text alone and unpadded, in float32: the hidden state of its last token, times the head."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    hidden = [model.model(torch.tensor([text])).last_hidden_state[0, -1] for text in texts]
    return torch.stack([model.score.weight[0] @ state for state in hidden])
