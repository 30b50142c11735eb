"""What the tests of the front end share: a model's config.json, GPUs, a command line from a dictionary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
