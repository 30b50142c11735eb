"""The sizes of a model, from its config.json: parameters, cache and activations without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
# Signs of layers that the formulas below do not describe: latent attention, linear attention, state spaces.
_OTHER_LAYERS = ("kv_lora_rank", "linear_num_key_heads", "mamba_d_state", "state_size", "ssm_cfg")
_QKV_BIAS = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text")


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama family: RMS norms, gated MLP, grouped-query attention; dense or with experts."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys) + self.qkv_bias * (queries + 2 * keys)
        if self.experts:
            mlp = self.experts * (3 * self.hidden * self.expert_intermediate + self.hidden)
            mlp += 3 * self.hidden * self.shared_intermediate
        else:
            mlp = 3 * self.hidden * self.intermediate
        return attention + mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the whole model. Qwen2.5-7B: 7,615,616,512."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    @property
    def cache_values_per_token(self) -> int:
        """Numbers in the KV cache for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def widest(self) -> int:
        """Width of a token inside the MLP, over the experts that it visits."""
        return self.expert_intermediate * 8 if self.experts else self.intermediate


def read_shape(config: Mapping[str, Any] | None) -> ModelShape | None:
    """The shape that a config.json describes; None for an architecture that is not of this family.

    Of a vision-language model the language part is described.
    """
    if config is None:
        return None
    text = config.get("text_config") or config
    if any(key not in text for key in _NEEDED) or any(text.get(key) for key in _OTHER_LAYERS):
        return None
    model_type = str(text.get("model_type", config.get("model_type", "")))
    experts = int(text.get("num_local_experts") or text.get("num_experts") or 0)
    return ModelShape(
        model_type=model_type,
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=text["num_attention_heads"],
        kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
        head_dim=text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"],
        intermediate=text["intermediate_size"],
        vocab=text["vocab_size"],
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        qkv_bias=bool(text.get("attention_bias")) or model_type in _QKV_BIAS,
        experts=experts,
        expert_intermediate=int(text.get("moe_intermediate_size") or text["intermediate_size"]),
        shared_intermediate=int(text.get("shared_expert_intermediate_size") or 0),
    )
