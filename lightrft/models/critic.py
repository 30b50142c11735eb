"""The critic: a decoder that says of each response token what reward it expects before that token is chosen.

    input_ids ─► decoder ─► hidden [B, T, D] ─► rows before a response token [N, D] ─► value head ─► [B, T]

On disk it is the decoder's Hugging Face folder, with `value_head.safetensors` beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel

from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions, load_causal_lm, load_trainable
from lightrft.models.multimodal import Features, Filler, model_inputs

VALUE_HEAD_FILE = "value_head.safetensors"
DECODER_PREFIX = "decoder."
VALUE_HEAD_PREFIX = "value_head."


class ValueHead(nn.Linear):
    """`hidden [N, D]` -> values `[N]`, in float32 whatever dtype its parameters have.

    A module of its own, as ZeRO-3 gathers parameters for the forward of the module that owns them, and only
    then.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.float(), self.weight.float(), self.bias.float()).squeeze(-1)


class Critic(nn.Module):
    """Values of the states in which response tokens are chosen.

    The value head starts at zero, so V = 0 until the first update and the first advantages are those of the
    rewards alone. A random head would give values of the size of its weights times the hidden states': noise
    far above a reward of 0 or 1, which the policy would be trained on before the critic has seen a reward.
    """

    def __init__(
        self,
        decoder: PreTrainedModel,
        device: torch.device | str = "cpu",
        fillers: Sequence[Filler] = (),
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.fillers = tuple(fillers)
        # One dtype for all parameters, as ZeRO flattens them into one buffer; the arithmetic is in float32.
        self.value_head = ValueHead(decoder.config.get_text_config().hidden_size, 1, dtype=decoder.dtype)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.to(device)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        response_mask: Tensor,
        position_ids: Tensor | None = None,
        multimodal: Sequence[Features] = (),
    ) -> Tensor:
        """`input_ids`, `attention_mask` `[B, T]` right-padded int64, `response_mask [B, T]` -> values.

        Values are `[B, T]` float32, aligned like log-probs: position t holds the value of the state before
        token t, read from the hidden state at t - 1; 0 where `response_mask` is 0. Without any response token
        the result is 0 and still has its graph, so that a rank without tokens joins every collective.
        `position_ids` and `multimodal` are as in `Policy.forward`.
        """
        wanted = response_mask[:, 1:].bool()
        inputs = model_inputs(self.decoder, input_ids, attention_mask, position_ids, multimodal, self.fillers)
        output = self.decoder(**inputs.arguments, use_cache=False)
        values = self.value_head(inputs.own(output.last_hidden_state)[:, :-1][wanted])
        empty = torch.zeros(wanted.shape, dtype=torch.float32, device=values.device)
        return F.pad(empty.masked_scatter(wanted, values), (1, 0))


def load_critic(
    options: ModelOptions, device: torch.device | str = "cpu", fillers: Sequence[Filler] = ()
) -> Critic:
    """A critic from a causal language model, whose head is dropped, or from a folder of `save_critic`.

    Dtype, dropout and gradient checkpointing are those of `load_causal_lm`.

    Raises:
        ModelError: the folder is no such model, or its value head does not fit it.
    """
    head_file = Path(options.path) / VALUE_HEAD_FILE
    if not head_file.exists():
        return Critic(_decoder(load_causal_lm(options), options), device, fillers)
    critic = Critic(load_trainable(options, AutoModel), device, fillers)
    try:
        critic.value_head.load_state_dict(load_file(head_file))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{options.flag} {options.path}: {VALUE_HEAD_FILE} does not fit: {reason}"
        ) from error
    return critic


def _decoder(model: PreTrainedModel, options: ModelOptions) -> PreTrainedModel:
    decoder = model.base_model
    if decoder is model:
        raise ModelError(
            f"{options.flag} {options.path}: {type(model).__name__} has no decoder apart from its LM head, "
            "so it cannot become a critic: use another model, or an estimator without a critic (group_norm)"
        )
    assert isinstance(decoder, PreTrainedModel)
    return decoder


def save_critic(folder: Path, state: dict[str, Tensor], critic: Critic, tokenizer: Any) -> None:
    """Write what `load_critic` reads. On one rank; `state` holds all of the critic's parameters, whole.

    The decoder alone is a plain folder that `AutoModel.from_pretrained` loads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    critic.decoder.save_pretrained(folder, state_dict=_below(DECODER_PREFIX, state))
    save_file(_below(VALUE_HEAD_PREFIX, state), folder / VALUE_HEAD_FILE)
    tokenizer.save_pretrained(folder)


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of `state` under `prefix`, without it, as safetensors takes it."""
    return {
        name.removeprefix(prefix): tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
