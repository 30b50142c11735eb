"""The policy: a causal language model that answers with log-probs of the tokens in a batch.

    input_ids ─► decoder ─► hidden [B, T, D] ─► rows that predict a response token [N, D] ─► head ─► [B, T]

The head runs on the N rows that are needed, not on B x T: prompts cost no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lightrft.distributed.collectives import rank
from lightrft.models.multimodal import Features, Filler, ModelInputs, model_inputs, rope_positions
from lightrft.types import Experience

BANNED = -1e30  # the logit of what is never sampled: finite, as 0 x inf would spoil the entropy


class PolicyOutput(NamedTuple):
    """Values of each token, `[B, T]` float32, aligned with `input_ids`; 0 where `response_mask` is 0."""

    logprobs: Tensor
    entropy: Tensor | None


class Policy(nn.Module):
    """Log-probs of response tokens at the sampling temperature. Used for policy and reference alike.

    `banned_token_ids` are not part of the distribution, as the engine never samples them. `fillers` are for
    batches without pictures, see `models/multimodal.py`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float = 1.0,
        device: torch.device | str = "cpu",
        banned_token_ids: Sequence[int] = (),
        fillers: Sequence[Filler] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.to(device)
        self.temperature = temperature
        self.banned_token_ids = list(banned_token_ids)
        self.fillers = tuple(fillers)
        self.whole_forward: bool | None = None  # known at the first forward

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        response_mask: Tensor,
        with_entropy: bool = False,
        temperature: float | None = None,
        position_ids: Tensor | None = None,
        multimodal: Sequence[Features] = (),
    ) -> PolicyOutput:
        """`input_ids`, `attention_mask` `[B, T]` right-padded int64, `response_mask [B, T]` -> log-probs.

        The token at position t is scored by the hidden state at t - 1. `with_entropy` adds the entropy of the
        distribution that each response token was drawn from, in nats. `temperature` stands in for the
        sampling temperature (texts that nobody sampled are scored at 1). `position_ids [B, T, A]` and
        `multimodal`, the features of each row, are those of the experience; both may be left out for text.
        """
        if self.whole_forward is None:
            self.whole_forward = not self._head_matches_forward()
            if self.whole_forward and rank() == 0:
                _say_whole_forward(type(self.model).__name__)
        wanted = response_mask[:, 1:].bool()
        if not wanted.any():  # keep the graph: a rank without tokens still joins every collective
            wanted = torch.zeros_like(wanted)
            wanted[0, 0] = True
        inputs = model_inputs(self.model, input_ids, attention_mask, position_ids, multimodal, self.fillers)
        logits = self._logits(inputs, wanted).float()
        logits = logits / (self.temperature if temperature is None else temperature)
        if self.banned_token_ids:
            banned = torch.tensor(self.banned_token_ids, device=logits.device)
            logits = logits.index_fill(-1, banned, BANNED)
        targets = input_ids[:, 1:][wanted]
        log_z = torch.logsumexp(logits, -1)
        logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_z
        entropy = None
        if with_entropy:
            entropy = _scatter(log_z - (logits.softmax(-1) * logits).sum(-1), wanted, response_mask)
        return PolicyOutput(_scatter(logprobs, wanted, response_mask), entropy)

    def positions(self, batch: Experience) -> Tensor | None:
        """`[B, T, A]` int64: the model's own positions of the batch, where pictures shape them; else None."""
        return rope_positions(self.model, batch.input_ids, batch.attention_mask, batch.multimodal)

    def _logits(self, inputs: ModelInputs, wanted: Tensor) -> Tensor:
        """Raw logits `[N, V]` of the rows that predict a wanted token."""
        if self.whole_forward:
            output = self.model(**inputs.arguments, use_cache=False)
            return inputs.own(output.logits)[:, :-1][wanted]
        return self._decoder_and_head(inputs, wanted)

    def _decoder_and_head(self, inputs: ModelInputs, wanted: Tensor) -> Tensor:
        output = self.model.base_model(**inputs.arguments, use_cache=False)
        hidden = inputs.own(output.last_hidden_state)
        return self.model.get_output_embeddings()(hidden[:, :-1][wanted])

    @torch.no_grad()
    def _head_matches_forward(self) -> bool:
        """Does decoder + head give the model's own logits?

        Some architectures scale or cap logits after the head; leaving that out would be a silent error, so
        the shortcut is compared with the model's forward on a few tokens, and not taken where they differ.
        Done within a forward, as ZeRO-3 gathers weights only there. The model's own comes first: the order in
        which ZeRO-3 gathers and lets go is that of its first forward, until a later one begins otherwise.
        """
        if self.model.base_model is self.model or self.model.get_output_embeddings() is None:
            return False
        parameter = next(self.model.parameters())
        ids = torch.arange(4, device=parameter.device).unsqueeze(0)
        mask = torch.ones_like(ids)
        wanted = torch.ones(1, 3, dtype=torch.bool, device=parameter.device)
        whole = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1][wanted].float()
        inputs = ModelInputs({"input_ids": ids, "attention_mask": mask}, *ids.shape)
        short = self._decoder_and_head(inputs, wanted).float()
        tolerance = 1e-5 if parameter.dtype == torch.float32 else 2e-2
        return bool((short - whole).abs().max() <= tolerance * whole.abs().max().clamp(min=1.0))


@cache
def _say_whole_forward(architecture: str) -> None:
    """Once for an architecture, as policy and reference find the same."""
    print(
        f"{architecture} changes logits after its head: log-probs take its whole forward, "
        "with logits for prompt tokens too",
        flush=True,
    )


def _scatter(values: Tensor, wanted: Tensor, response_mask: Tensor) -> Tensor:
    """`values [N]` of the wanted predictions back to `[B, T]`; 0 at every other token."""
    out = torch.zeros(response_mask.shape, dtype=values.dtype, device=values.device)
    out[:, 1:][wanted] = values
    return torch.where(response_mask.bool(), out, torch.zeros_like(out))
