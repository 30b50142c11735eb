"""Prompts with pictures: every engine, the policy and transformers itself agree, before and after a sync.

Two ranks split the prompts so that one has all the pictures and the other none: ZeRO must not stand still.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

from lightrft.tools.tiny_vision import make_random_vlm
from tests.ranks import WORLDS, run_worker
from tests.workers.vision import ROWS, write_rows

pytestmark = pytest.mark.slow
LIMIT = 1e-4  # float32
# Family, engine, ranks, ZeRO stages one after another: each begins with a sync of other weights.
CASES = [
    ("qwen2_vl", "vllm", 1, [0, 1]),
    ("qwen2_5_vl", "vllm", 1, [0, 2]),
    ("qwen3_vl", "vllm", 1, [0]),
    ("qwen2_5_vl", "vllm", 2, [3]),
    ("qwen2_5_vl", "hf", 2, [3, 2]),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case[:3])))
def found(request, tmp_path_factory):
    family, engine, world, stages = request.param
    if torch.cuda.is_available() or world not in WORLDS:
        pytest.skip("float32 and gloo ranks: for the CPU")
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    folder = tmp_path_factory.mktemp("vision")
    model = make_random_vlm(folder / "model", family)
    settings = {"model": str(model), "rows": str(write_rows(folder)), "engine": engine, "stages": stages}
    return run_worker("vision", world, folder / "out.json", **settings)


def stages(found):
    return [stage for rank in found for stage in rank["stages"].values()]


def test_vision_engine_and_transformers_agree_on_every_kind_of_prompt(found):
    seen = {name for stage in stages(found) for name in stage["gaps"]}
    assert seen == set(ROWS)
    for stage in stages(found):
        assert {name: gap for name, gap in stage["gaps"].items() if not gap <= LIMIT} == {}


def test_vision_trainer_and_engine_agree_in_one_padded_batch(found):
    assert all(stage["trainer"] <= LIMIT for stage in stages(found))


def test_vision_positions_are_the_models_own(found):
    assert all(rank["positions"] for rank in found)


def test_vision_placeholders_are_never_sampled(found):
    assert all(stage["banned"] == [] for stage in stages(found))


def test_vision_ranks_with_and_without_pictures_step_together(found):
    for stage in stages(found):
        assert not stage["step"]["skipped"]
        assert stage["step"]["norm"] > 1e-3
    for rank in found[1:]:
        for mine, first in zip(rank["stages"].values(), found[0]["stages"].values(), strict=True):
            assert mine["step"]["norm"] == pytest.approx(first["step"]["norm"], rel=1e-5)
