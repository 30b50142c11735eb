"""A model folder without weights, a prompt file, and a maker of resolved configurations around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lightrft.config.gpus import Gpu
from lightrft.config.resolve import Config, resolve
from lightrft.config.rules import check
from tests.config.runs import QWEN_7B, words, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "Qwen2.5-7B", QWEN_7B)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """64 rows, and a blank line that is none."""
    path = tmp_path / "train.jsonl"
    path.write_text('{"input": "1+1", "reference": "2"}\n' * 64 + "\n")
    return path


@pytest.fixture
def base(model: Path, prompts: Path, tmp_path: Path) -> dict[str, Any]:
    """Flags of a run that nothing is wrong with."""
    return {
        "pretrain": model,
        "prompt_data": prompts,
        "save_path": tmp_path / "out",
        "train_batch_size": 16,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 4,
        "engine_type": "hf",
        "top_p": 1.0,
    }


@pytest.fixture
def make(base: dict[str, Any]) -> Callable[..., Config]:
    """`make(train_batch_size=8, gpus=h200(4))`: the base run with changes; None leaves a flag out."""

    def make(
        gpus: tuple[Gpu, ...] = (),
        environ: Mapping[str, str] | None = None,
        modality: Any = "text",
        **flags: Any,
    ) -> Config:
        return resolve(words(base | flags), modality, environ or {}, gpus)

    return make


@pytest.fixture
def found(make: Callable[..., Config]) -> Callable[..., dict[str, str]]:
    """The rules that do not hold for a changed base run: name -> severity and messages."""

    def found(**changes: Any) -> dict[str, str]:
        result: dict[str, str] = {}
        for finding in check(make(**changes)):
            text = f"{finding.severity}: {finding.message}"
            result[finding.rule] = f"{result[finding.rule]}\n{text}" if finding.rule in result else text
        return result

    return found
