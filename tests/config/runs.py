"""What the tests of the front end share: a model's config.json, GPUs, a command line from a dictionary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from lightrft.config import engines
from lightrft.config.gpus import Gpu

QWEN_7B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
QWEN_RM = QWEN_7B | {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
QWEN_VL = {
    "model_type": "qwen2_vl",
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "vision_config": {"depth": 32},
    **{k: v for k, v in QWEN_7B.items() if k not in ("model_type", "architectures")},
}


def write_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """A folder that looks like a model: the front end reads config.json and the names of the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    return folder


def h200(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, "NVIDIA H200", 150_000_000_000, (9, 0), f"GPU-{i}aa") for i in range(count))


def words(flags: Mapping[str, Any]) -> list[str]:
    """`{"bf16": True, "max_len": 8, "top_k": None}` -> ["--bf16", "--max_len", "8"]."""
    line = []
    for name, value in flags.items():
        if value is True:
            line.append(f"--{name}")
        elif value is not None:
            line += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return line


def fake_versions(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str]) -> None:
    """As if of the engines these distributions were installed, and no others."""

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(engines, "version", version)


REGISTRY = """_TEXT_GENERATION_MODELS = {
    "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
    "Emu3ForConditionalGeneration": (
        "transformers",
        "TransformersMultiModalForCausalLM",
    ),
}
_PREVIOUSLY_SUPPORTED_MODELS = {"MotifForCausalLM": "0.10.2"}
"""
KERNELS = """class CPUAttentionBackend:
    def get_supported_head_sizes(cls) -> list[int]:
        return [32, 64, 128]
"""
FILES = {
    "model_executor/models/registry.py": REGISTRY,
    "v1/attention/backends/cpu_attn.py": KERNELS,
    "device_allocator/cumem.py": 'conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")\n',
    "srt/models/qwen2.py": "class Qwen2ForCausalLM(Model):\n    pass\n\n\nEntryClass = Qwen2ForCausalLM\n",
}


def fake_engine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A module's folder with what the front end reads of vLLM and SGLang, in place of both."""
    for name, text in FILES.items():
        (folder / "engine" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "engine" / name).write_text(text)
    monkeypatch.setattr(engines, "source", lambda engine: folder / "engine")
    return folder / "engine"
