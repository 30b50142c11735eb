"""Whole runs with vLLM beside the trainer, as a user starts them."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch

from tests.ranks import WORLDS, launch
from tests.test_end_to_end import TRAIN, data, flags, metrics, python  # noqa: F401 - data is a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]
needs_two = pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
needs_exact_draws = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU's batches round otherwise from run to run"
)
GAP = 0.35 if torch.cuda.is_available() else 1e-4
VLLM = {"engine_type": "vllm", "engine_mem_util": 0.1, "rollout_logprobs": "all", "check_weight_sync": 1}


def whole(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def run(tiny_model, data, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("vllm")
    done = python(*flags(tiny_model, data, out, **VLLM, eval_before_train=True, save_steps=2, max_ckpt_num=9))
    return out, whole(done)


def test_the_engine_is_tested_and_then_follows_the_trainer(run):
    out, said = run
    assert "engine self-test: vllm: gap" in said
    steps = metrics(out)
    assert [m["step"] for m in steps] == [1, 2, 3, 4]
    assert all(m["rollout/logprob_gap_max"] < GAP for m in steps)
    assert all(m["sentinel/gap_mean"] == 0 for m in steps)
    assert steps[-1]["policy/kl"] > 0.0  # the weights moved, and the gap stayed
    samples = [
        json.loads(line)
        for path in sorted((out / "logs").rglob("*.jsonl"))
        if path.name != "metrics.jsonl"
        for line in path.read_text().splitlines()
    ]
    assert samples
    assert all(s["policy_version"] == s["step"] - 1 for s in samples)


def test_every_row_is_evaluated(run):
    out, _ = run
    lines = [json.loads(x) for x in (out / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [x["eval/rows"] for x in lines if "eval/rows" in x] == [5, 5]


@needs_exact_draws
def test_resumed_equals_uninterrupted(run, tiny_model, data, tmp_path):  # noqa: F811
    out, _ = run
    cut = tmp_path / "cut"
    shutil.copytree(out / "step_000002", cut / "step_000002")
    again = flags(tiny_model, data, cut, **VLLM, save_steps=2, max_ckpt_num=9, load_checkpoint=True)
    whole(python(*again))
    for a, b in zip(metrics(out)[2:], metrics(cut), strict=True):
        same = [k for k in a if not k.startswith(("time/", "memory/"))]
        assert {k: a[k] for k in same} == {k: b.get(k) for k in same}
    assert (out / "hf" / "model.safetensors").read_bytes() == (cut / "hf" / "model.safetensors").read_bytes()


@needs_two
@pytest.mark.parametrize(("tp", "stage"), [(1, 3), (2, 2)])
def test_two_ranks(tiny_model, data, tmp_path, tp, stage):  # noqa: F811
    changes = {**VLLM, "engine_tp_size": tp, "zero_stage": stage, "rollout_logprobs": "sample"}
    words = flags(tiny_model, data, tmp_path, **changes)
    said = whole(launch(2, [TRAIN, *map(str, words)]))
    assert said.count("engine self-test: vllm: gap") == 1
    assert all(m["rollout/logprob_gap_max"] < GAP for m in metrics(tmp_path))


def test_dynamic_sampling_and_two_rollouts_a_step(tiny_model, data, tmp_path):  # noqa: F811
    changes = {**VLLM, "dynamic_sampling": True, "max_gen_batches": 2, "train_batch_size": 16}
    whole(python(*flags(tiny_model, data, tmp_path, **changes, first_token_temperature=3.0)))
    assert all(m["rollout/logprob_gap_max"] < GAP for m in metrics(tmp_path))


def test_an_engine_that_cannot_start_says_why_in_one_line(tiny_model, data, tmp_path):  # noqa: F811
    changes = {**VLLM, "engine_kwargs": '{"kv_cache_memory_bytes": 1000}'}
    done = python(*flags(tiny_model, data, tmp_path, **changes))
    assert done.returncode == 1
    [line] = [x for x in done.stderr.splitlines() if x.startswith("lightrft: error:")]
    assert "starting the engine failed (vLLM" in line
    assert "--max_len" in line
