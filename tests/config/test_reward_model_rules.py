"""What a wrong reward model costs: a message before anything loads."""

import pytest
import torch
from safetensors.torch import save_file

from lightrft.config.availability import acts
from lightrft.config.flags import FLAGS
from lightrft.config.rules.reward_model import RULES
from tests.config.runs import QWEN_7B, QWEN_RM, QWEN_VL, write_model

TESTED = {
    "reward_models_are_named",
    "reward_models_are_used",
    "reward_models_are_here",
    "reward_models_read_text",
    "reward_models_reach_max_len",
}


@pytest.fixture
def rm(tmp_path):
    return write_model(tmp_path / "rm", QWEN_RM)


@pytest.fixture
def reward_rules(found):
    """Those of this file that do not hold."""
    return lambda **changes: {name: text for name, text in found(**changes).items() if name in TESTED}


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == TESTED


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"reward": ["model:0.5", "format"]},
        {"reward_pretrain": "a={rm},b={rm}"},
        {"reward_pretrain": "a={rm},b={rm}", "reward": ["model.a:0.7", "model.b:0.3"]},
    ],
)
def test_good_reward_models_pass(reward_rules, rm, flags):
    given = {"reward_pretrain": rm} | flags
    given["reward_pretrain"] = str(given["reward_pretrain"]).format(rm=rm)
    assert reward_rules(**given) == {}


def test_a_reward_names_a_model_that_is_there(reward_rules, rm):
    text = reward_rules(reward_pretrain=f"a={rm},b={rm}", reward=["model", "model.c", "model.a", "model.b"])
    assert text["reward_models_are_named"] == (
        f"error: --reward model: --reward_pretrain a={rm},b={rm} has no such model: use model.a or model.b\n"
        f"error: --reward model.c: --reward_pretrain a={rm},b={rm} has no such model: use model.a or model.b"
    )
    text = reward_rules(reward_pretrain=rm, reward="model.a")["reward_models_are_named"]
    assert text.endswith("has no such model: use model")


def test_a_model_that_no_reward_uses_is_not_loaded_and_said_to_be_unused(reward_rules, rm):
    text = reward_rules(reward_pretrain=f"a={rm},b=/nowhere", reward=["model.a", "format"])
    assert text == {
        "reward_models_are_used": "warning: --reward_pretrain: no reward uses model.b, which is not loaded: "
        "add it to --reward model.a format, or leave it out"
    }


def test_without_any_model_among_the_rewards_the_flag_has_no_effect(found):
    messages = found(reward_pretrain="/nowhere", reward="math")
    assert "--reward_pretrain has no effect with --reward math" in messages["flag_without_effect"]
    assert not TESTED & set(messages)


def test_a_named_model_acts_like_the_only_one(make):
    assert acts(make(reward_pretrain="a=org/rm", reward="model.a"), FLAGS["reward_pretrain"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            QWEN_7B,
            "architectures are ['Qwen2ForCausalLM'], and a reward model is a ...ForSequenceClassification",
        ),
        (QWEN_RM | {"architectures": None}, "architectures are []"),
        (
            QWEN_RM | {"id2label": {"0": "a", "1": "b", "2": "c"}},
            "the checkpoint has 3 labels; a reward model has 1",
        ),
        (QWEN_RM | {"id2label": None}, "the checkpoint has 2 labels"),  # transformers' own default
    ],
)
def test_what_is_no_reward_model_is_named_with_what_was_found(reward_rules, tmp_path, config, says):
    folder = write_model(tmp_path / "other", config)
    text = reward_rules(reward_pretrain=folder)["reward_models_are_here"]
    assert text.startswith(f"error: --reward_pretrain {folder}: ")
    assert says in text


def test_the_policy_that_stands_in_for_a_missing_flag_is_explained(reward_rules, model):
    text = reward_rules(reward="model")["reward_models_are_here"]
    assert text.startswith(
        f"error: --reward_pretrain {model} (not given, so the same as --pretrain): architect"
    )


def test_every_model_and_everything_it_lacks_is_named_at_once(reward_rules, tmp_path, rm):
    (tmp_path / "empty").mkdir()
    named = f"a=/nowhere,b={tmp_path / 'empty'},c={rm / 'config.json'},d={rm}"
    lines = reward_rules(reward_pretrain=named)["reward_models_are_here"].split("\n")
    assert len(lines) == 3
    assert lines[0].endswith(
        "--reward_pretrain /nowhere: there is no such folder, and it is not a hub name (org/name)"
    )
    for part in (
        "there is no config.json in it",
        "there is no tokenizer in it",
        "there are no weights in it",
    ):
        assert part in lines[1]
    assert "it is a file: give the folder" in lines[2]


def test_a_hub_name_passes_unless_the_hub_may_not_be_reached(reward_rules, tmp_path):
    assert reward_rules(reward_pretrain="org/rm") == {}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    assert (
        "not in the cache"
        in reward_rules(reward_pretrain="org/rm", environ=offline)["reward_models_are_here"]
    )


@pytest.mark.parametrize(
    ("names", "fine"),
    [(["model.norm.weight", "score.weight"], True), (["model.norm.weight", "classifier.weight"], False)],
)
def test_a_head_is_looked_for_in_the_names_of_the_weights(reward_rules, rm, names, fine):
    save_file({name: torch.zeros(2) for name in names}, rm / "model.safetensors", metadata={"format": "pt"})
    found = reward_rules(reward_pretrain=rm)
    assert (found == {}) is fine
    if not fine:
        assert "none of its 2 weights is of a head named 'score'" in found["reward_models_are_here"]


def test_the_names_of_sharded_weights_are_read_from_their_index(reward_rules, rm):
    (rm / "model.safetensors").rename(rm / "part.safetensors")
    index = rm / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"model.norm.weight": "part.safetensors"}}')
    assert "none of its 1 weights is of a head" in reward_rules(reward_pretrain=rm)["reward_models_are_here"]
    index.write_text('{"weight_map": {"score.weight": "part.safetensors"}}')
    assert reward_rules(reward_pretrain=rm) == {}


def test_pictures_are_refused(reward_rules, rm, tmp_path):
    policy = write_model(tmp_path / "vl", QWEN_VL)
    text = reward_rules(pretrain=policy, modality="vision", reward_pretrain=f"a={rm}")[
        "reward_models_read_text"
    ]
    assert text.startswith("error: --reward model.a: reward models read text and see no pictures: use a rule")


@pytest.mark.parametrize(("name", "length"), [("max_position_embeddings", 4096), ("n_positions", 1024)])
def test_a_model_that_is_shorter_than_the_samples_is_a_warning(reward_rules, tmp_path, name, length):
    short = {k: v for k, v in QWEN_RM.items() if k != "max_position_embeddings"} | {name: length}
    folder = write_model(tmp_path / "short", short)
    assert reward_rules(reward_pretrain=folder, max_len=length, prompt_max_len=512) == {}
    text = reward_rules(reward_pretrain=folder, max_len=length + 1, prompt_max_len=512)
    assert text["reward_models_reach_max_len"] == (
        f"warning: max_len ({length + 1}) is over the {length} positions of --reward_pretrain {folder}: "
        f"longer samples get no score and are excluded; use --max_len {length}"
    )
