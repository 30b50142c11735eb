"""What a model folder says of itself, read without transformers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
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
REWARD_ARCHITECTURE = "ForSequenceClassification"
REWARD_HEAD = "score"  # what transformers calls the head of a classifier made of a decoder
_VISION_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "visual")
_POINTER = b"version https://git-lfs"


def model_folder(name: str, hub: Hub) -> Path | None:
    """The folder of a local model, or of a hub model's copy in the cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    return hub.model_folder(name) if is_hub_name(name) else None


def absence(name: str, hub: Hub) -> str | None:
    """Why there is no folder of the model `name`, nor one to be fetched; None where there may be."""
    if model_folder(name, hub) is not None:
        return None
    if Path(name).exists():
        return "it is a file: give the folder with config.json, tokenizer and weights"
    if not is_hub_name(name):
        return "there is no such folder, and it is not a hub name (org/name)"
    if hub.offline:
        return (
            f"not in the cache {hub.cache}, and HF_HUB_OFFLINE forbids to fetch it: unset that variable, or "
            "give a local folder"
        )
    return None


def read_config(folder: Path | None) -> dict[str, Any] | None:
    """config.json, or None where there is none that can be read."""
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def missing_files(folder: Path) -> Iterator[str]:
    """What `folder` lacks of a model, whatever kind of model it is."""
    if read_config(folder) is None:
        path = folder / "config.json"
        yield "its config.json cannot be read" if path.exists() else "there is no config.json in it"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"there is no tokenizer in it ({', '.join(TOKENIZER_FILES[:3])}, ...)"
    problem = weight_problem(folder)
    if problem:
        yield problem


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


def weight_names(folder: Path) -> set[str]:
    """The names of the weights in the safetensors files of `folder`; none where they cannot be told."""
    names: set[str] = set()
    try:
        for index in folder.glob("*.safetensors.index.json"):
            names |= set(json.loads(index.read_text())["weight_map"])
        for file in folder.glob("*.safetensors") if not names else ():
            with file.open("rb") as handle:  # eight bytes of length, then a header of JSON
                names |= set(json.loads(handle.read(int.from_bytes(handle.read(8), "little"))))
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return names - {"__metadata__"}


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


def reward_model_problem(architectures: Sequence[str], num_labels: int) -> str | None:
    """Why a model of these `architectures` gives no score; None where nothing shows."""
    if not any(name.endswith(REWARD_ARCHITECTURE) for name in architectures):
        return (
            f"architectures are {list(architectures)}, and a reward model is a ...{REWARD_ARCHITECTURE} "
            "checkpoint: from another one its head would be made up at random"
        )
    if num_labels != 1:
        return f"the checkpoint has {num_labels} labels; a reward model has 1"
    return None


def label_count(config: Mapping[str, Any]) -> int:
    """The labels of a classifier with this config.json; transformers leaves out what it takes for granted."""
    labels = config.get("id2label")
    return len(labels) if labels else int(config.get("num_labels") or 2)


def known_model_types() -> str:
    """Text in which every model_type of the installed transformers occurs quoted; "" without transformers."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent / "models" / "auto"
    files = [folder / "configuration_auto.py", folder / "auto_mappings.py"]
    return "".join(file.read_text() for file in files if file.is_file())
