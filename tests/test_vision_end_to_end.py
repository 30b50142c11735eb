"""`train_vl.py` on a tiny model, as a user starts it: rows with one and two pictures, a video, and text."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lightrft.tools.tiny_vision import make_random_vlm
from tests.ranks import LIMIT_S, WORLDS, launch
from tests.test_end_to_end import flags, metrics

pytestmark = pytest.mark.slow
TRAIN_VL = str(Path(__file__).parent.parent / "train_vl.py")


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory):
    return make_random_vlm(tmp_path_factory.mktemp("vlm") / "model")


@pytest.fixture(scope="module")
def vision_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(4):
        Image.effect_noise((56 + 28 * (i % 3), 56), 60).convert("RGB").save(folder / f"{i}.png")
    rows = []
    for i in range(16):
        row = {"input": f"{i}?", "reference": str(i)}
        pictures = [f"{i % 4}.png", "3.png"]
        rows.append([row, row | {"images": pictures[:1]}, row | {"images": pictures}][i % 3])
    rows[4] = {"input": "<video>?", "videos": [["3.png", "3.png"]], "reference": "1"}
    for name, count in (("train", 16), ("eval", 5)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[:count]))
    (folder / "grader.py").write_text(
        "def digits(prompts, responses, references):\n"
        "    return [sum(c.isalpha() for c in r) / max(1, len(r)) for r in responses]\n"
    )
    return folder


def words(model, data, out, **changes):
    changes = {"prompt_max_len": 64, "max_len": 96, "mixed_mm_data": True} | changes
    return [TRAIN_VL, *map(str, flags(model, data, out, **changes))]


def python(*command):
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environ, timeout=LIMIT_S, check=False
    )


@pytest.fixture(scope="module")
def vision_run(vision_model, vision_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    done = python(*words(vision_model, vision_data, out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out, done


def test_vision_run_is_right_at_every_step(vision_run):
    out, _ = vision_run
    steps = metrics(out)
    assert [m["step"] for m in steps] == [1, 2, 3, 4]
    for m in steps:
        assert m["policy/ratio_max_deviation"] < 1e-4
        assert m["rollout/logprob_gap_max"] < 1e-4
        assert m["policy/grad_norm"] > 1e-3


def test_vision_run_exports_a_folder_that_loads_with_its_processor(vision_run, vision_model):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    out, _ = vision_run
    trained, start = (AutoModelForImageTextToText.from_pretrained(p) for p in (out / "hf", vision_model))
    pairs = zip(trained.named_parameters(), start.parameters(), strict=True)
    assert [n for (n, a), b in pairs if torch.equal(a, b)] == []
    assert AutoProcessor.from_pretrained(out / "hf").image_processor.patch_size == 14


def test_vision_run_with_a_frozen_tower_says_so_and_leaves_it(vision_model, vision_data, tmp_path):
    done = python(*words(vision_model, vision_data, tmp_path, freeze_prefix=True, eval_data=None))
    assert done.returncode == 0, done.stderr[-3000:]
    before = load_file(vision_model / "model.safetensors")
    after = load_file(tmp_path / "hf" / "model.safetensors")
    tower = {n for n in before if "visual" in n}
    count = sum(before[n].numel() for n in tower)
    assert f"--freeze_prefix: {count:,} weights of the vision tower stay as they are" in done.stdout
    assert {n for n in before if torch.equal(before[n], after[n])} == tower


@pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
def test_vision_two_ranks_under_zero_3_give_the_losses_of_one(
    vision_run, vision_model, vision_data, tmp_path
):
    """The prompts of a rank have no picture in some micro-batches, and others at the same time have."""
    out, _ = vision_run
    done = launch(2, words(vision_model, vision_data, tmp_path, zero_stage=3))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for a, b in zip(metrics(out), metrics(tmp_path), strict=True):
        for name in ("policy/loss", "policy/kl", "rollout/reward", "policy/grad_norm", "policy/entropy"):
            assert b[name] == pytest.approx(a[name], abs=2e-5), (a["step"], name)


def test_vision_critic_and_resume(vision_model, vision_data, tmp_path):
    changes = {"advantage_estimator": "gae", "critic_learning_rate": 1e-2, "save_value_network": True}
    changes |= {"eval_data": None, "save_steps": 2, "max_ckpt_num": 9}
    done = python(*words(vision_model, vision_data, tmp_path, **changes))
    assert done.returncode == 0, done.stderr[-3000:]
    first = metrics(tmp_path)
    for name in ("step_000003", "step_000004"):
        if (tmp_path / name).exists():
            (tmp_path / name).rename(tmp_path / f"away_{name}")
    again = python(*words(vision_model, vision_data, tmp_path, **changes, load_checkpoint=True))
    assert again.returncode == 0, again.stderr[-3000:]
    second = {m["step"]: m for m in metrics(tmp_path)}
    assert len(first) == 4
    for m in first[2:]:
        assert second[m["step"]]["policy/loss"] == m["policy/loss"]


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vision_rows_of_text_alone_run_as_well(vision_model, vision_data, tmp_path):
    rows = [{"input": f"{i}?", "reference": str(i)} for i in range(4)]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"prompt_data": path, "eval_data": None, "engine_type": "vllm", "processor": vision_model}
    done = python(*words(vision_model, vision_data, tmp_path / "out", **changes))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert metrics(tmp_path / "out")[0]["rollout/logprob_gap_max"] < 1e-4


def test_vision_doors_name_each_other(vision_model, tiny_model, vision_data, tmp_path):
    swapped = words(vision_model, vision_data, tmp_path)
    swapped[0] = TRAIN_VL.replace("train_vl", "train")
    for command, script in ((words(tiny_model, vision_data, tmp_path), "train.py"), (swapped, "train_vl.py")):
        done = python(*command)
        assert done.returncode == 2
        assert f"use {script}" in done.stderr
