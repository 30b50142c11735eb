"""From words to values, and what is said about words that cannot be read."""

import json

import pytest

from lightrft.config.arguments import parse
from lightrft.config.reward_spec import RewardSpec, parse_reward
from lightrft.errors import ConfigError

BASE = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "8", "--dry_run"]


def values(*words):
    return parse([*BASE, *words]).values


def problem(*words):
    with pytest.raises(ConfigError) as caught:
        parse([*BASE, *words])
    return str(caught.value)


def test_space_and_equals_mean_the_same():
    assert values("--max_len", "512") == values("--max_len=512")
    assert values("--max_len=512")["max_len"] == 512


def test_the_last_of_two_counts():
    assert values("--max_len", "512", "--max_len", "64")["max_len"] == 64


@pytest.mark.parametrize("words", [["0.9", "0.99"], ["0.9,0.99"], ["0.9,", "0.99"]])
def test_betas_apart_or_with_a_comma(words):
    assert values("--adam_betas", *words)["adam_betas"] == [0.9, 0.99]


def test_several_evaluation_temperatures():
    assert values("--eval_temperature", "0.0", "1.0")["eval_temperature"] == [0.0, 1.0]
    assert values("--eval_temperature=0,0.6")["eval_temperature"] == [0.0, 0.6]


def test_switches_and_their_opposites():
    assert values()["bf16"] is None
    assert values("--bf16")["bf16"] is True
    assert values("--no_bf16")["bf16"] is False
    assert values("--disable_engine_sleep")["enable_engine_sleep"] is False
    assert values("--no_engine_chunked_prefill")["engine_chunked_prefill"] is False


def test_given_holds_the_flags_as_written():
    given = parse([*BASE, "--no_bf16", "--max_len=5"]).given
    assert {"no_bf16", "max_len", "pretrain"} <= given
    assert "bf16" not in given


def test_engine_arguments_are_a_json_object():
    assert values("--engine_kwargs", '{"a": [1]}')["engine_kwargs"] == {"a": [1]}
    assert problem("--engine_kwargs", "[1]") == (
        "--engine_kwargs [1]: not a JSON object. Give one in single quotes, like '{\"enforce_eager\": true}'"
    )
    assert "not JSON" in problem("--engine_kwargs", "{a}")


def test_defaults_are_not_shared_between_calls():
    values()["adam_betas"].append(3)
    assert values()["adam_betas"] == [0.9, 0.95]


WRONG = [
    (["--max_len", "4k"], "--max_len 4k: not a whole number"),
    (["--max_len", "8.5"], "--max_len 8.5: not a whole number"),
    (["--top_p", "x"], "--top_p x: not a number"),
    (["--top_p", "nan"], "--top_p nan: must be finite"),
    (["--top_p", "1.5"], "--top_p 1.5: must be above 0, at most 1"),
    (["--max_epochs", "0"], "--max_epochs 0: must be at least 1"),
    (["--adam_betas", "0.9"], "--adam_betas 0.9: needs two numbers, like 0.9 0.95"),
    (["--adam_betas", "0.9", "1.0"], "--adam_betas 1.0: must be at least 0, below 1"),
    (["--max_len"], "--max_len needs a value: longest sequence"),
    (["--max_len", "--bf16"], "--max_len needs a value"),
    (["--eval_temperature"], "--eval_temperature needs a value"),
    (["--system_prompt="], "--system_prompt is empty"),
    (["--bf16=true"], "--bf16=true: the flag takes no value"),
    (["--kl_estimator", "k4"], "--kl_estimator k4: choose from k1, k2, k3"),
    (["--zero_stage", "0"], "--zero_stage 0: choose from 1, 2, 3"),
    (["--loss_agg_mode", "token-meen"], "did you mean token-mean? choose from"),
    (["--policy_loss", "x"], "choose from ppo, cpgd, gspo, gmpo, cispo, sapo, or path/to/file.py:Object"),
    (["--reward", "gsm8"], "--reward gsm8: did you mean gsm8k? choose from gsm8k"),
    (["--reward", "math:much"], "--reward math:much: the weight 'much' is not a number: write math:0.5"),
    (["--reward", "math:inf"], "the weight must be finite"),
    (["stray"], "stray: a value without a flag"),
    (["-x"], "-x: unknown flag: flags start with two dashes"),
    (["--train_bach_size", "8"], "--train_bach_size: unknown flag: did you mean --train_batch_size?"),
    (["--train-batch-size", "8"], "--train-batch-size: unknown flag: did you mean --train_batch_size?"),
    (["--ps_clip", "8"], "--ps_clip: unknown flag: did you mean --clip_range?"),
    (["--zzzzzz"], "--zzzzzz: unknown flag (see --help)"),
    (["--flash_attn"], "--flash_attn: unknown flag: here it is --attn_implementation flash_attention_2"),
    (["--use_gspo"], "here it is --policy_loss gspo"),
]


@pytest.mark.parametrize(("words", "text"), WRONG, ids=[" ".join(w) for w, _ in WRONG])
def test_a_word_that_cannot_be_read_is_answered_with_what_would_do(words, text):
    assert text in problem(*words)


def test_abbreviations_are_off():
    assert "--train_batch: unknown flag" in problem("--train_batch", "8")
    assert "--prompt_max: unknown flag" in problem("--prompt_max", "8")


def test_all_problems_come_at_once():
    text = problem("--max_len", "4k", "--unknown_thing", "5", "--kl_estimator", "k9", "--warmup", "1")
    assert text.startswith("4 problems:\n  - ")
    assert len(text.splitlines()) == 5


def test_what_is_missing_is_named_with_its_meaning():
    with pytest.raises(ConfigError) as caught:
        parse([])
    text = str(caught.value)
    for name in ("pretrain", "train_batch_size", "rollout_batch_size", "save_path", "prompt_data"):
        assert f"--{name} is missing: " in text


def test_planning_needs_no_data_and_no_folder():
    planned = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "8"]
    assert parse([*planned, "--print_config"]).values["save_path"] is None
    with pytest.raises(ConfigError, match="2 problems"):
        parse(planned)


def test_a_misspelt_required_flag_is_not_reported_missing_as_well():
    text = problem("--save_path_", "x", "--train_bach_size", "8")
    assert "is missing" not in text
    with pytest.raises(ConfigError) as caught:
        parse(["--train_bach_size", "8", *BASE[:2], *BASE[4:]])
    assert str(caught.value) == "--train_bach_size: unknown flag: did you mean --train_batch_size?"


def test_old_spellings_work_and_say_so_once():
    arguments = parse([*BASE, "--eps_clip", "0.1", "--clip_eps_high=0.4", "--eps_clip", "0.15"])
    assert arguments.values["clip_range"] == 0.15
    assert arguments.values["clip_range_higher"] == 0.4
    assert arguments.deprecations == (
        "--eps_clip is an old spelling: write --clip_range",
        "--clip_eps_high is an old spelling: write --clip_range_higher",
    )


def test_a_text_that_starts_with_dashes_is_a_text():
    assert values("--system_prompt", "-- be brief")["system_prompt"] == "-- be brief"


def test_launchers_pass_the_local_rank():
    assert values("--local_rank=3")["local_rank"] == 3


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("math", RewardSpec("math")),
        ("math:0.5", RewardSpec("math", 0.5)),
        ("format:-1", RewardSpec("format", -1.0)),
        ("a/b.py:score", RewardSpec("a/b.py:score")),
        ("a/b.py:score:2e-1", RewardSpec("a/b.py:score", 0.2)),
    ],
)
def test_rewards_have_a_name_and_a_weight(text, spec):
    assert parse_reward(text) == spec
    assert values("--reward", text)["reward"] == [text]


def test_every_value_can_be_written_as_json():
    assert json.loads(json.dumps(values())) == values()
