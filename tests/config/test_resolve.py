"""Defaults that follow from other flags, from the machine and from the launcher."""

import pickle

import pytest

from lightrft.config.gpus import Gpu
from lightrft.config.reward_spec import (
    RewardModelSpec,
    RewardSpec,
    join_reward_models,
    parse_reward_models,
)
from lightrft.config.world import World
from lightrft.errors import ConfigError
from tests.config.runs import h200

V100 = Gpu(0, "Tesla V100", 32 << 30, (7, 0))
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_flags_are_attributes_and_unknown_ones_are_errors(make):
    config = make()
    assert config.train_batch_size == 16
    assert not hasattr(config, "train_bach_size")
    with pytest.raises(AttributeError, match="there is no flag --nothing"):
        _ = config.nothing


def test_a_configuration_survives_pickling(make):
    config = make()
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_dictionary_is_a_copy(make):
    config = make()
    config.to_dict()["train_batch_size"] = 1
    assert config.train_batch_size == 16


def test_response_length_is_what_the_prompt_leaves(make):
    config = make(max_len=1000, prompt_max_len=300)
    assert config.generate_max_len == 700
    assert config.resolved["generate_max_len"] == "max_len - prompt_max_len"
    assert make(generate_max_len=12).generate_max_len == 12
    assert "generate_max_len" not in make(generate_max_len=12).resolved


@pytest.mark.parametrize(
    ("flags", "loss"),
    [
        ({}, "ppo"),
        ({"advantage_estimator": "cpgd"}, "cpgd"),
        ({"advantage_estimator": "cpgd", "policy_loss": "ppo"}, "ppo"),
    ],
)
def test_the_loss_goes_with_the_estimator(make, flags, loss):
    assert make(**flags).policy_loss == loss


@pytest.mark.parametrize(
    ("flags", "reward"),
    [
        ({}, ["math"]),
        ({"reward_pretrain": "org/rm"}, ["model"]),
        ({"reward_pretrain": "a=org/rm,b=org/other"}, ["model.a", "model.b"]),
        ({"remote_rm_url": "http://host:5000"}, ["remote"]),
        ({"remote_rm_url": "http://host:5000", "reward_pretrain": "org/rm"}, ["remote"]),
        ({"reward": ["gsm8k", "format:0.1"], "reward_pretrain": "org/rm"}, ["gsm8k", "format:0.1"]),
    ],
)
def test_the_reward_follows_from_what_is_given(make, flags, reward):
    assert make(**flags).reward == reward
    assert ("reward" in make(**flags).resolved) == ("reward" not in flags)


def test_rewards_come_taken_apart(make):
    assert make(reward=["gsm8k", "format:0.1"]).rewards == (RewardSpec("gsm8k"), RewardSpec("format", 0.1))


def test_a_reward_model_defaults_to_the_policy(make, model):
    assert make(reward="model").reward_pretrain == str(model)
    assert make(reward="math").reward_pretrain is None


def test_reward_models_come_taken_apart_with_full_paths(make, model, monkeypatch):
    monkeypatch.chdir(model.parent)
    config = make(reward_pretrain=f"a={model.name},b=org/other", reward=["model.b:2", "model.a"])
    assert config.reward_models == (
        RewardModelSpec("model.a", str(model)),
        RewardModelSpec("model.b", "org/other"),
    )
    assert config.reward_pretrain == f"a={model},b=org/other"
    assert make(reward_pretrain=model.name).reward_pretrain == str(model)


def test_only_the_models_that_a_reward_names_are_loaded(make):
    assert make(reward_pretrain="a=org/rm,b=org/other", reward="model.b").reward_models == (
        RewardModelSpec("model.b", "org/other"),
    )
    assert make(reward_pretrain="org/rm", reward="math").reward_models == ()
    assert make().reward_models == ()


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("org/rm", [("model", "org/rm")]),
        ("runs/lr=1e-5/rm", [("model", "runs/lr=1e-5/rm")]),
        ("./a=b", [("model", "./a=b")]),
        ("a=X", [("model.a", "X")]),
        ("a=X, b_2=./lr=1", [("model.a", "X"), ("model.b_2", "./lr=1")]),
    ],
)
def test_the_forms_of_reward_models(text, models):
    specs = parse_reward_models(text)
    assert [(spec.reward, spec.path) for spec in specs] == models
    assert parse_reward_models(join_reward_models(specs)) == specs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=X,Y", "Y: several models are NAME=PATH,NAME=PATH"),
        ("a=", "a=: several models are NAME=PATH"),
        ("a=X,b-c=Y", "b-c=Y: several models are"),
        ("a=X,a=Y", "a=X,a=Y: the name a is given twice"),
        ("a=X,", "a=X,: several models are"),
    ],
)
def test_what_names_no_reward_models_is_refused_with_the_rest_of_the_line(make, text, says):
    with pytest.raises(ConfigError, match="2 problems") as error:
        make(reward_pretrain=text, top_k="many")
    assert f"--reward_pretrain {says}" in str(error.value)


def test_a_critic_starts_from_the_policy(make, model):
    assert make(advantage_estimator="gae").critic_pretrain == str(model)
    assert make().critic_pretrain is None


@pytest.mark.parametrize(
    ("gpus", "flags", "bf16"),
    [
        ((), {}, False),
        ((), {"bf16": True}, True),
        (h200(1), {}, True),
        (h200(1), {"no_bf16": True}, False),
        ((V100,), {}, False),
        ((), {"dry_run": True, "num_gpus": 8}, True),
    ],
)
def test_bfloat16_is_on_where_the_gpu_has_it(make, gpus, flags, bf16):
    config = make(gpus=gpus, **flags)
    assert config.bf16 is bf16
    assert ("bf16" in config.resolved) == (not {"bf16", "no_bf16"} & set(flags))


def test_ranks_of_a_run_started_alone(make):
    assert (make().num_ranks, make().on_gpu) == (1, False)
    assert (make(gpus=h200(4)).num_ranks, make(gpus=h200(4)).on_gpu) == (4, True)
    assert make(gpus=h200(4), num_gpus=2).num_ranks == 2


def test_ranks_of_a_launched_process_are_the_launchers(make):
    config = make(environ=TORCHRUN)
    assert (config.num_ranks, config.on_gpu) == (2, False)
    assert config.world == World(2, 1, 1, 2, "launcher", "127.0.0.1", 0)
    assert make(environ=TORCHRUN, gpus=h200(4)).on_gpu


def test_a_plan_without_gpus_assumes_the_fewest_that_fit_and_says_so(make):
    config = make(dry_run=True, engine_type="vllm", engine_tp_size=4, sp_size=6)
    assert (config.num_ranks, config.on_gpu) == (12, True)
    assert config.resolved["num_gpus"].startswith("12 assumed for the plan")
    assert make(dry_run=True, engine_type="vllm", num_gpus=8, engine_tp_size=4).num_ranks == 8
    assert "num_gpus" not in make(dry_run=True).resolved  # the hf engine plans for this very CPU


def test_existing_paths_become_absolute_and_hub_names_stay(make, model, prompts, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = make(pretrain=model.name, prompt_data=f"{prompts.name}@[:8], org/data", save_path="out")
    assert config.pretrain == str(model)
    assert config.prompt_data == f"{prompts}@[:8],org/data"
    assert config.save_path == str(tmp_path / "out")
    assert config.log_dir == str(tmp_path / "out" / "logs")
    assert make(pretrain="org/name").pretrain == "org/name"
    assert make(reward="r.py:f:0.5").reward == [f"{tmp_path / 'r.py'}:f:0.5"]


def test_a_checkpoint_to_load_is_by_default_the_newest_of_save_path(make, tmp_path):
    assert make(load_checkpoint=True).ckpt_path == str(tmp_path / "out")
    assert make().ckpt_path is None


def test_a_wandb_run_gets_a_name(make):
    assert make(use_wandb="project").wandb_run_name.startswith("Qwen2.5-7B-group_norm-")
    assert make(use_wandb="project", wandb_run_name="mine").wandb_run_name == "mine"
    assert make().wandb_run_name is None


def test_engine_logprobs_follow_what_needs_them(make):
    assert make(engine_type="vllm").rollout_logprobs == "sample"
    assert make(engine_type="vllm", rollout_is="token").rollout_logprobs == "all"
    assert make().rollout_logprobs == "all"


def test_sizes_that_rules_and_plan_share(make):
    config = make(gpus=h200(8), sp_size=2)
    assert config.samples_per_rollout == 16
    assert config.data_parallel_size == 4
    assert config.ranks_word == "GPUs"
    assert make().ranks_word == "processes"
