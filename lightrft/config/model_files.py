"""What a model folder says of itself, read without transformers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightrft.config.hub import Hub
from lightrft.config.sources import is_hub_name

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tiktoken.model",
    "tekken.json",
)
_VISION_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "visual")
_POINTER = b"version https://git-lfs"


def model_folder(name: str, hub: Hub) -> Path | None:
    """The folder of a local model, or of a hub model's copy in the cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    return hub.model_folder(name) if is_hub_name(name) else None


def read_config(folder: Path | None) -> dict[str, Any] | None:
    """config.json, or None where there is none that can be read."""
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def weight_problem(folder: Path) -> str | None:
    """What is wrong with the weight files of `folder`; None where nothing shows."""
    files = [f for pattern in ("*.safetensors", "pytorch_model*.bin") for f in sorted(folder.glob(pattern))]
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return f"{index.name} cannot be read"
        missing = sorted(name for name in named if not (folder / name).is_file())
        if missing:
            return f"{index.name} names {len(named)} files, of which {', '.join(missing)} is missing"
    if not files:
        return "there are no weights in it (*.safetensors or pytorch_model*.bin)"
    for file in files:
        with file.open("rb") as handle:
            if handle.read(len(_POINTER)) == _POINTER:
                return f"{file.name} is a Git LFS pointer, not the weights: run `git lfs pull` in the folder"
    return None


def is_vision(config: Mapping[str, Any]) -> bool:
    """True for a model that takes images."""
    return any(config.get(key) for key in _VISION_KEYS)


def architecture_problem(config: Mapping[str, Any], modality: str) -> str | None:
    """Why a model with this config.json cannot be trained by this front door; None where nothing shows."""
    model_type, architectures = config.get("model_type"), config.get("architectures") or []
    if not model_type:
        return "its config.json has no model_type: it is not a Hugging Face model folder"
    if is_vision(config) and modality == "text":
        return f"it is a vision-language model ({model_type}): use train_vl.py"
    if not is_vision(config) and modality == "vision":
        return f"it is a text model ({model_type}): use train.py"
    wrong = ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering")
    if config.get("is_encoder_decoder") or (architectures and str(architectures[0]).endswith(wrong)):
        name = architectures[0] if architectures else model_type
        return f"{name} does not generate text token by token: give a causal language model"
    known = known_model_types()
    if known and model_type not in known and not config.get("auto_map"):
        return f"the installed transformers does not know its model_type {model_type!r}: upgrade it"
    return None


def known_model_types() -> str:
    """Text in which every model_type of the installed transformers occurs quoted; "" without transformers."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent / "models" / "auto"
    files = [folder / "configuration_auto.py", folder / "auto_mappings.py"]
    return "".join(file.read_text() for file in files if file.is_file())
