"""From a model folder (or hub name) to a module that can be trained: checks, dtype, attention, no dropout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from lightrft.errors import ModelError
from lightrft.models.multimodal import continue_behind_videos


@dataclass(frozen=True)
class ModelOptions:
    """A model and how to load it; `flag` is the one that named it, for messages."""

    path: str
    dtype: torch.dtype = torch.float32
    attn_implementation: str = "sdpa"
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    flag: str = "--pretrain"
    vision: bool = False  # a vision-language model


def load_processor(
    path: str, trust_remote_code: bool = False, flag: str = "--pretrain", kind: str = ""
) -> Any:
    """The processor of the vision-language model at `path`, its tokenizer with a pad token.

    `kind` is a processor class of transformers to read it with; "" for the one that the folder names.

    Raises:
        ModelError: none there, or one that takes no images.
    """
    reader: Any = getattr(transformers, kind, None) if kind else AutoProcessor
    if reader is None or not hasattr(reader, "from_pretrained"):
        raise ModelError(f"--processor {kind}: no folder, no hub name and no processor class of transformers")
    try:
        processor = reader.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{flag} {path}: no processor could be loaded: {_first_line(error)}") from error
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise ModelError(
            f"{flag} {path}: {type(processor).__name__} takes no images: a vision-language model has "
            "preprocessor_config.json or processor_config.json"
        )
    _complete(processor.tokenizer, path, flag)
    return processor


def load_tokenizer(path: str, trust_remote_code: bool = False, flag: str = "--pretrain") -> Any:
    """The tokenizer at `path`, with a pad token (the end token stands in where the model has none).

    Raises:
        ModelError: no tokenizer there, or one without an end token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{flag} {path}: no tokenizer could be loaded: {_first_line(error)}") from error
    _complete(tokenizer, path, flag)
    return tokenizer


def _complete(tokenizer: Any, path: str, flag: str) -> None:
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"{flag} {path}: the tokenizer has no eos_token, so no response could ever end: "
            "add one to tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def load_model_config(
    path: str, trust_remote_code: bool = False, flag: str = "--pretrain", vision: bool = False
) -> Any:
    """The model's config, once it is known to be one that generates text, with `vision` from images, too.

    Raises:
        ModelError: missing, unreadable, of an unknown architecture, or no such model.
    """
    config = read_model_config(path, trust_remote_code, flag)
    if vision and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ModelError(
            f"{flag} {path}: model_type {config.model_type!r} is no vision-language model (architectures: "
            f"{config.architectures}); train_vl.py needs one that AutoModelForImageTextToText loads"
        )
    if vision:
        return config
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "auto_map", None):
        raise ModelError(
            f"{flag} {path}: model_type {config.model_type!r} is no causal language model "
            f"(architectures: {config.architectures}); train.py needs one that AutoModelForCausalLM loads"
        )
    return config


def read_model_config(path: str, trust_remote_code: bool, flag: str) -> Any:
    """The config of whatever model is at `path`.

    Raises:
        ModelError: missing, unreadable, or of an unknown architecture.
    """
    if not Path(path).exists() and path.count("/") != 1:
        raise ModelError(f"{flag} {path}: there is no such folder, and it is not a hub name (org/name)")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{flag} {path}: {_first_line(error)}") from error


def load_causal_lm(options: ModelOptions) -> PreTrainedModel:
    """The model in `options.dtype` on the CPU, dropout off, in training mode.

    Dropout would make the ratio of the first update differ from 1 and the reference differ from the policy.

    Raises:
        ModelError: it cannot be loaded, or is no causal language model (with `vision`: no vision-language
            model).
    """
    return load_trainable(options, AutoModelForImageTextToText if options.vision else AutoModelForCausalLM)


def load_trainable(options: ModelOptions, auto_class: Any) -> PreTrainedModel:
    """What `auto_class` makes of the folder, as `load_causal_lm` says it."""
    config = load_model_config(options.path, options.trust_remote_code, options.flag, options.vision)
    return load_model(options, auto_class, config)


def load_model(options: ModelOptions, auto_class: Any, config: Any) -> PreTrainedModel:
    """The same for a `config` that has been read and checked.

    Raises:
        ModelError: the weights cannot be loaded.
    """
    try:
        model = auto_class.from_pretrained(
            options.path,
            config=config,
            dtype=options.dtype,
            attn_implementation=options.attn_implementation,
            trust_remote_code=options.trust_remote_code,
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ModelError(f"{options.flag} {options.path}: {_first_line(error)}") from error
    disable_dropout(model)
    if options.vision:
        continue_behind_videos(model)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the attention that reads it from attributes."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - nn.Module types its attributes as tensors


def end_token_ids(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """All ids that end a response: the tokenizer's, and those of the model's generation config."""
    ids = {int(tokenizer.eos_token_id)}
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    if configured is not None:
        ids.update([configured] if isinstance(configured, int) else configured)
    return ids


def _first_line(error: Exception) -> str:
    """What a library says of its failure, short enough for a message of ours."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
