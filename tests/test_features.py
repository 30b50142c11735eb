"""Every algorithmic flag in a whole run on the tiny model, and across a resume."""

import json
import shutil

import pytest

from tests.test_end_to_end import data, flags, metrics, python  # noqa: F401 - data is a fixture

pytestmark = pytest.mark.slow

# What each adds to a run, and a metric that shows that it acted.
FEATURES = {
    "gae": (
        {"advantage_estimator": "gae", "critic_learning_rate": 1e-2, "save_value_network": True},
        "critic/loss",
    ),
    "shaping": (
        {
            "advantage_estimator": "reinforce++",
            "reward_running_norm": True,
            "reward_running_norm_minus_mean": True,
            "overlong_buffer": True,
            "overlong_buffer_len": 4,
            "kl_controller": "adaptive",
        },
        "shaping/overlong_share",
    ),
    "dynamic": ({"dynamic_sampling": True, "max_gen_batches": 2}, "sampling/rounds"),
    "tokens": (
        {"high_entropy_token_ratio": 0.5, "rollout_is": "token", "first_token_temperature": 2.0},
        "policy/filtered_share",
    ),
    "averages": ({"enable_ema": True, "ema_beta": 0.5, "pretrain_data": "TEXTS"}, "ptx/loss"),
    "distillation": (
        {"advantage_estimator": "on_policy_distillation", "teacher_pretrain": "MODEL"},
        "policy/advantage_abs_mean",
    ),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} and {i + 1}"}) + "\n" for i in range(6)))
    return path


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_acts_and_resumes_to_the_bit(name, tiny_model, data, texts, tmp_path):  # noqa: F811
    changes, metric = FEATURES[name]
    names = {"TEXTS": texts, "MODEL": tiny_model}
    changes = {k: names.get(v, v) if isinstance(v, str) else v for k, v in changes.items()}
    changes |= {"eval_data": None, "save_steps": 2, "max_ckpt_num": 9}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = python(*flags(tiny_model, data, whole, **changes))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    expected = metrics(whole)
    assert len(expected) == 4
    assert all(metric in m for m in expected)
    shutil.copytree(whole / "step_000002", cut / "step_000002")
    again = python(*flags(tiny_model, data, cut, **changes, load_checkpoint=True))
    assert again.returncode == 0, again.stderr[-3000:]
    for a, b in zip(expected[2:], metrics(cut), strict=True):
        same = [k for k in a if not k.startswith(("time/", "memory/"))]
        assert {k: a[k] for k in same} == {k: b.get(k) for k in same}
    folders = [p.name for p in whole.iterdir() if (p / "config.json").exists()]
    for folder in folders:
        assert (whole / folder / "model.safetensors").read_bytes() == (
            cut / folder / "model.safetensors"
        ).read_bytes()
    assert set(folders) == {"hf", *(["critic"] * (name == "gae")), *(["hf_ema"] * (name == "averages"))}
