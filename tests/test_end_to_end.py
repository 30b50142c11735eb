"""The front door on a tiny model: whole runs, as a user starts them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks import LIMIT_S, WORLDS, launch
from tests.reward_models import make_reward_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
TRAIN = str(ROOT / "train.py")


def flags(model, data, out, **changes):
    values = {
        "pretrain": model,
        "prompt_data": data / "train.jsonl",
        "eval_data": data / "eval.jsonl",
        "reward": f"{data / 'grader.py'}:digits",
        "prompt_max_len": 16,
        "generate_max_len": 6,
        "max_len": 32,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 2,
        "train_batch_size": 8,
        "micro_train_batch_size": 2,
        "micro_rollout_batch_size": 8,
        "init_kl_coef": 0.01,
        "top_p": 1.0,
        "actor_learning_rate": 1e-3,
        "engine_type": "hf",
        "save_path": out,
    } | changes
    words = ["--apply_chat_template", "--use_kl_loss"]
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 16), ("eval", 5)):
        rows = [{"input": f"{i}+{i + 1}=", "reference": str(2 * i + 1)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    # A random model never adds: what it can earn is the share of digits, so that groups differ.
    (folder / "grader.py").write_text(
        "def digits(prompts, responses, references):\n"
        "    return [sum(c.isdigit() for c in r) / max(1, len(r)) for r in responses]\n"
    )
    return folder


def metrics(out):
    lines = [json.loads(line) for line in (out / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [m for m in lines if "policy/loss" in m]


def python(*words, **kwargs):
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, TRAIN, *map(str, words)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=LIMIT_S,
        check=False,
        **kwargs,
    )


@pytest.fixture(scope="module")
def one_rank(tiny_model, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    done = python(*flags(tiny_model, data, out, eval_before_train=True, eval_temperature=[0.0, 1.0]))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out, done


def test_a_run_leaves_what_the_docs_say(one_rank):
    out, done = one_rank
    assert "reward" in done.stdout
    names = {p.name for p in out.iterdir()}
    assert {"step_000004", "hf", "logs"} <= names
    assert not [n for n in names if n.startswith(".")]
    steps = metrics(out)
    assert [m["step"] for m in steps] == [1, 2, 3, 4]
    for m in steps:
        assert m["policy/ratio_max_deviation"] < 1e-4
        assert abs(m["policy/first_kl"]) < 1e-7
        assert m["rollout/logprob_gap_max"] < 1e-4
        assert m["policy/grad_norm"] > 1e-3
    assert steps[0]["policy/kl"] == 0.0
    assert steps[-1]["policy/kl"] > 0.0


def test_evaluation_before_and_after_sees_every_row(one_rank):
    out, _ = one_rank
    lines = [json.loads(x) for x in (out / "logs" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [m for m in lines if "eval/pass_rate" in m]
    assert len(evaluated) == 2
    assert all(m["eval/rows"] == 5 and m["eval/t1/rows"] == 5 for m in evaluated)


def test_the_exported_folder_loads_and_differs_from_the_start(one_rank, tiny_model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out, _ = one_rank
    trained, start = (AutoModelForCausalLM.from_pretrained(p) for p in (out / "hf", tiny_model))
    differs = [not torch.equal(a, b) for a, b in zip(trained.parameters(), start.parameters(), strict=True)]
    assert all(differs)
    assert AutoTokenizer.from_pretrained(out / "hf").chat_template


@pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_ranks_give_the_losses_of_one(one_rank, tiny_model, data, tmp_path, stage):
    out, _ = one_rank
    changes = {"eval_before_train": True, "zero_stage": stage, "train_batch_size": 8}
    done = launch(2, [TRAIN, *map(str, flags(tiny_model, data, tmp_path, **changes))])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for a, b in zip(metrics(out), metrics(tmp_path), strict=True):
        for name in ("policy/loss", "policy/kl", "rollout/reward", "policy/grad_norm", "policy/entropy"):
            assert b[name] == pytest.approx(a[name], abs=1e-5), (a["step"], name)


@pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
def test_the_deepspeed_launcher_starts_a_second_run_beside_a_first(one_rank, tiny_model, data, tmp_path):
    """Its port is taken, as every run of it gets the same; and it gives the losses of one rank, too."""
    out, _ = one_rank
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", "2"]
        words = flags(tiny_model, data, tmp_path, eval_before_train=True)
        done = subprocess.run(
            [*launcher, "--master_port", str(port), TRAIN, *map(str, words)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"port {port} is taken" in done.stdout
    losses = [[m["policy/loss"] for m in metrics(folder)] for folder in (out, tmp_path)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_resumed_equals_uninterrupted(tiny_model, data, tmp_path):
    """To the bit: the run goes on from step 3 in an episode of 4, in the middle of everything."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    changes = {"num_episodes": 2, "train_batch_size": 4, "max_epochs": 2, "save_steps": 3, "seed": 5}
    changes |= {"eval_data": None, "max_ckpt_num": 9}
    done = python(*flags(tiny_model, data, whole, **changes))
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.copytree(whole / "step_000003", cut / "step_000003")
    shutil.copytree(whole / "logs", cut / "logs")  # with steps that the resumed run will do again
    again = python(*flags(tiny_model, data, cut, **changes, load_checkpoint=True))
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"resuming from {cut / 'step_000003'}" in again.stdout
    expected, got = metrics(whole), metrics(cut)
    assert [m["step"] for m in got] == [m["step"] for m in expected] == list(range(1, 9))
    for a, b in zip(expected, got, strict=True):
        same = [k for k in a if not k.startswith(("time/", "memory/"))]
        assert {k: a[k] for k in same} == {k: b.get(k) for k in same}
    for name in ("model.safetensors", "config.json"):
        assert (whole / "hf" / name).read_bytes() == (cut / "hf" / name).read_bytes()


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_difference(one_rank, tiny_model, data):
    out, _ = one_rank
    done = python(*flags(tiny_model, data, out, train_batch_size=4, load_checkpoint=True))
    assert done.returncode == 2
    assert "--train_batch_size: 8 -> 4" in done.stderr


def test_a_stopped_run_ends_cleanly_with_its_last_checkpoint_whole(tiny_model, data, tmp_path):
    from lightrft.trainer.checkpoint import find_checkpoint

    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = flags(tiny_model, data, tmp_path, num_episodes=500, save_steps=1, eval_data=None)
    process = subprocess.Popen(
        [sys.executable, TRAIN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    deadline = time.time() + LIMIT_S
    while find_checkpoint(tmp_path) is None and time.time() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, stderr[-3000:]
    assert "stopped by SIGTERM; the last checkpoint is" in stderr
    assert "Traceback" not in stdout + stderr
    assert find_checkpoint(tmp_path) is not None


BAD = [
    ({"pretrain": "/nowhere/model"}, "/nowhere/model"),
    ({"prompt_data": "/nowhere/data.jsonl"}, "/nowhere/data.jsonl"),
    ({"save_path": "/proc/nowhere"}, "save_path"),
    ({"rollout_batch_size": 64, "train_batch_size": 128}, "16"),
    ({"reward": "exact_mtach"}, "exact_match"),
    ({"num_gpus": 2}, "num_gpus"),
]


@pytest.mark.parametrize(("change", "word"), BAD, ids=[str(next(iter(c))) for c, _ in BAD])
def test_bad_input_is_one_message_and_exit_code_2(tiny_model, data, tmp_path, change, word):
    out = change.pop("save_path", tmp_path)
    done = python(*flags(tiny_model, data, out, **change))
    assert done.returncode == 2, done.stdout + done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_reward_models_judge_and_are_the_same_in_shards(tiny_model, data, tmp_path):
    """Two models by weight with a rule; two ranks under ZeRO-3 see the rewards of one."""
    models = [
        make_reward_model(tiny_model, tmp_path / name, seed=seed) for name, seed in (("a", 5), ("b", 6))
    ]
    changes = {
        "reward_pretrain": f"a={models[0]},b={models[1]}",
        "reward": ["model.a:0.7", "model.b:0.3", "format"],
        "rollout_batch_size": 8,
        "train_batch_size": 16,
        "micro_rollout_batch_size": 3,
    }
    done = python(*flags(tiny_model, data, tmp_path / "one", **changes))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = metrics(tmp_path / "one")
    assert len(steps) == 2
    for m in steps:
        total = 0.7 * m["reward/model.a"] + 0.3 * m["reward/model.b"] + m["reward/format"]
        assert m["rollout/reward"] == pytest.approx(total, abs=1e-5)
        assert m["rollout/excluded_share"] == 0
        assert m["policy/grad_norm"] > 1e-3
    if 2 in WORLDS:
        words = flags(tiny_model, data, tmp_path / "two", zero_stage=3, **changes)
        done = launch(2, [TRAIN, *map(str, words)])
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        for a, b in zip(steps, metrics(tmp_path / "two"), strict=True):
            for name in ("reward/model.a", "reward/model.b", "policy/loss"):
                assert b[name] == pytest.approx(a[name], abs=1e-4), (a["step"], name)
