"""What a model with a vision tower needs in its forward beyond token ids. Text models pass untouched.

Position ids are the model's own (M-RoPE), computed per sample; pixels reach the device by micro-batch.

A batch without a picture would leave the tower out of its forward and backward. Under ZeRO the ranks gather
and reduce in step, so that a rank without pictures would stand still with the others; and alone it would give
the tower no gradient where others give it zero. Such a batch takes a *filler* along: a row with one small
picture, that has no response and is multiplied by 0 where it meets the loss.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lightrft.data.multimodal import ALIGNED, batch_features

AXES = 3  # of M-RoPE: time, height, width
Features = Mapping[str, Tensor]  # of one row: what `Processor.features` gives
_VISION_TOKEN = re.compile(r"(image|video|vision|audio)(_\w+)?_token_(id|index)")


@dataclass(frozen=True)
class Filler:
    """A short prompt with one picture, for batches that have none of its kind."""

    token_ids: list[int]
    features: Features

    def is_missing(self, rows: Sequence[Features]) -> bool:
        """None of `rows` has a picture of this kind."""
        own = {name for name in self.features if not name.endswith(ALIGNED)}
        return not any(own & row.keys() for row in rows)


@dataclass(frozen=True)
class ModelInputs:
    """Keyword arguments of a model's forward for `size` rows of `width` tokens, and some fillers behind."""

    arguments: dict[str, Any]
    size: int
    width: int

    def own(self, values: Tensor) -> Tensor:
        """`[size + fillers, ≥ width, …]` -> `[size, width, …]`, with the fillers in its graph at weight 0."""
        rows = values[: self.size, : self.width]
        if len(values) == self.size:
            return rows
        return rows + 0.0 * values[self.size :].sum()


def model_inputs(
    model: PreTrainedModel,
    input_ids: Tensor,
    attention_mask: Tensor,
    position_ids: Tensor | None = None,
    rows: Sequence[Features] = (),
    fillers: Sequence[Filler] = (),
) -> ModelInputs:
    """The arguments for `input_ids`, `attention_mask` `[B, T]` right-padded.

    `position_ids` `[B, T, A]` has A positions for each token; None: computed here. `rows` are the features of
    each row (on any device), or empty for a batch of text.
    """
    size, width = input_ids.shape
    rows = list(rows) or [{}] * size
    missing = [filler for filler in fillers if filler.is_missing(rows)]
    whole = max([width, *(len(filler.token_ids) for filler in missing)])
    ids = F.pad(input_ids, (0, whole - width, 0, len(missing)))
    mask = F.pad(attention_mask, (0, whole - width, 0, len(missing)))
    for i, filler in enumerate(missing, size):
        ids[i, : len(filler.token_ids)] = torch.tensor(filler.token_ids, device=ids.device)
        mask[i, : len(filler.token_ids)] = 1
    rows += [filler.features for filler in missing]
    arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if position_ids is None:
        position_ids = rope_positions(model, ids, mask, rows)
    elif missing:
        behind = rope_positions(model, ids[size:], mask[size:], rows[size:])
        assert behind is not None
        position_ids = torch.cat([F.pad(position_ids, (0, 0, 0, whole - width)), behind])
    if position_ids is not None:
        arguments["position_ids"] = position_ids.to(ids.device).permute(2, 0, 1)
    lengths = mask.sum(-1).tolist()
    features = batch_features(rows, lengths, whole)
    arguments |= {name: value.to(ids.device) for name, value in features.items()}
    return ModelInputs(arguments, size, width)


def rope_positions(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, rows: Sequence[Features]
) -> Tensor | None:
    """`[B, T, A]` int64 on the device of `input_ids`, by the model's own `get_rope_index` of each prompt; a
    response goes on behind it, one by one.

    None where the model has none, or no row has pictures: positions are 0, 1, … then, and the model makes
    them itself. Padding has position 0.
    """
    compute = getattr(model.base_model, "get_rope_index", None)
    if compute is None or not any(rows):
        return None
    accepted = inspect.signature(compute).parameters
    prompts: dict[int, Tensor] = {}  # by the identity of a row: the samples of a prompt share it
    out = torch.zeros(*input_ids.shape, AXES, dtype=torch.long)
    for i, row in enumerate(rows):
        length = int(attention_mask[i].sum())
        if row and id(row) not in prompts:
            widths = (value.shape[1] for name, value in row.items() if name.endswith(ALIGNED))
            width = next(widths, length)
            ids = input_ids[i : i + 1, :width].cpu()
            known = {name: value.cpu() for name, value in row.items() if name in accepted}
            prompts[id(row)] = compute(ids, attention_mask=torch.ones_like(ids), **known)[0][:, 0].T
        prompt = prompts[id(row)] if row else out.new_zeros(0, AXES)
        start = int(prompt.max()) + 1 if len(prompt) else 0
        response = torch.arange(start, start + length - len(prompt)).unsqueeze(-1)
        out[i, :length] = torch.cat([prompt, response.expand(-1, AXES)])
    return out.to(input_ids.device)


def continue_behind_videos(model: PreTrainedModel) -> None:
    """Make the model's `get_rope_index` place what follows a video behind the video's last position.

    So Qwen2.5-VL was trained ("the text start position_ids as the max vision position_ids plus 1"), and so
    vLLM does; transformers 5.17 looks at height and width alone, and a long video then shares positions with
    the text after it. In place, so that `generate` has it, too.
    """
    compute = getattr(model.base_model, "get_rope_index", None)
    if compute is None or "mm_token_type_ids" not in inspect.signature(compute).parameters:
        return

    @wraps(compute)
    def get_rope_index(input_ids: Tensor, mm_token_type_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        positions, deltas = compute(input_ids, mm_token_type_ids, *args, **kwargs)
        mask = kwargs.get("attention_mask")
        if bool((mm_token_type_ids == 2).any()):
            for i in range(len(input_ids)):
                kept = slice(None) if mask is None else mask[i].bool()
                moved = _behind(positions[:, i, kept], mm_token_type_ids[i, kept].tolist())
                positions[:, i, kept] = moved
                deltas[i] = moved.max() + 1 - moved.shape[1]
        return positions, deltas

    setattr(model.base_model, "get_rope_index", get_rope_index)  # noqa: B010 - typed as a module otherwise


def _behind(positions: Tensor, types: Sequence[int]) -> Tensor:
    """`[A, L]` with every run of one token type moved to begin at the largest position before it plus 1."""
    positions = positions.clone()
    start, end = 0, 0
    while start < len(types):
        stop = next((k for k in range(start, len(types)) if types[k] != types[start]), len(types))
        run = positions[:, start:stop]
        run += end - run.min()
        start, end = stop, int(run.max()) + 1
    return positions


def vision_token_ids(config: Any) -> tuple[int, ...]:
    """Ids that stand for pictures, by the model's config: sampled, they would be a picture without pixels."""
    found = {
        value
        for part in (config, config.get_text_config())
        for name, value in vars(part).items()
        if _VISION_TOKEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool)
    }
    size = config.get_text_config().vocab_size
    return tuple(sorted(i for i in found if 0 <= i < size))


def freeze_tower(model: PreTrainedModel) -> int:
    """Freeze all that is neither language model nor head; returns how many weights that are.

    Raises:
        ValueError: nothing is there to freeze.
    """
    language = model.get_decoder() if hasattr(model, "get_decoder") else None
    kept: set[int] = set()
    for module in (language, model.get_output_embeddings(), model.get_input_embeddings()):
        if isinstance(module, nn.Module):
            kept |= {id(p) for p in module.parameters()}
    frozen = [p for p in model.parameters() if id(p) not in kept]
    if not frozen or len(frozen) == len(list(model.parameters())):
        raise ValueError(f"{type(model).__name__} has no vision tower beside its language model")
    for parameter in frozen:
        parameter.requires_grad_(False)
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in frozen)
