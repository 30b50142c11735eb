"""Models, data and folders that flags name, checked without torch."""

import json

import pytest

from lightrft.config import model_files
from lightrft.config.rules.files import RULES
from tests.config.runs import QWEN_7B, QWEN_VL, write_model

TESTED = {
    "model_is_here",
    "data_is_here",
    "folders_can_be_written",
    "reward_files_are_here",
    "recipe_is_readable",
    "needed_to_train",
    "model_reaches_max_len",
}


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == TESTED


def test_a_model_that_is_not_there(found):
    assert found(pretrain="/nowhere/model")["model_is_here"] == (
        "error: --pretrain /nowhere/model: there is no such folder, and it is not a hub name (org/name)"
    )
    assert "it is not a hub name" in found(pretrain="gpt2")["model_is_here"]
    assert "it is not a hub name" in found(pretrain="./org/name")["model_is_here"]


def test_a_file_is_not_a_model(found, prompts):
    assert "is a file: give the folder" in found(pretrain=prompts)["model_is_here"]


def test_a_hub_name_passes_unless_the_hub_may_not_be_reached(found, tmp_path):
    assert "model_is_here" not in found(pretrain="org/name")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    text = found(pretrain="org/name", environ=offline)["model_is_here"]
    assert f"not in the cache {tmp_path / 'hf' / 'hub'}, and HF_HUB_OFFLINE forbids to fetch it" in text
    write_model(tmp_path / "hf" / "hub" / "models--org--name" / "snapshots" / "abc", QWEN_7B)
    assert "model_is_here" not in found(pretrain="org/name", environ=offline)


def test_an_empty_folder_lacks_everything_at_once(found, tmp_path):
    (tmp_path / "empty").mkdir()
    text = found(pretrain=tmp_path / "empty")["model_is_here"]
    assert "there is no config.json in it" in text
    assert "there is no tokenizer in it (tokenizer.json, " in text
    assert "there are no weights in it (*.safetensors or pytorch_model*.bin)" in text


def test_a_config_that_cannot_be_read(found, model):
    (model / "config.json").write_text("{")
    assert "its config.json cannot be read" in found()["model_is_here"]


ARCHITECTURES = [
    ({"hidden_size": 8}, "its config.json has no model_type"),
    (QWEN_VL, "it is a vision-language model (qwen2_vl): use train_vl.py"),
    (QWEN_7B | {"architectures": ["Qwen2ForSequenceClassification"]}, "give a causal language model"),
    (
        {"model_type": "t5", "architectures": ["T5Model"], "is_encoder_decoder": True},
        "T5Model does not generate text",
    ),
    (QWEN_7B | {"model_type": "qwen99"}, "does not know its model_type 'qwen99': upgrade it"),
]


@pytest.mark.parametrize(("config", "text"), ARCHITECTURES)
def test_architectures_that_cannot_be_trained(found, tmp_path, config, text):
    assert text in found(pretrain=write_model(tmp_path / "other", config))["model_is_here"]


def test_a_text_model_at_the_vision_door(found):
    assert "it is a text model (qwen2): use train.py" in found(modality="vision")["model_is_here"]


def test_a_vision_model_at_its_own_door(found, tmp_path):
    changes = {"pretrain": write_model(tmp_path / "vl", QWEN_VL), "modality": "vision"}
    assert "model_is_here" not in found(**changes)


def test_a_model_with_its_own_code_may_have_any_type(found, tmp_path):
    config = QWEN_7B | {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    assert "model_is_here" not in found(pretrain=write_model(tmp_path / "mine", config))


def test_without_transformers_no_model_type_is_judged(found, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "known_model_types", lambda: "")
    folder = write_model(tmp_path / "other", QWEN_7B | {"model_type": "qwen99"})
    assert "model_is_here" not in found(pretrain=folder)


def test_a_missing_shard_is_named(found, model):
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (model / "model-1.safetensors").touch()
    text = found()["model_is_here"]
    assert "model.safetensors.index.json names 2 files, of which model-2.safetensors is missing" in text
    (model / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json cannot be read" in found()["model_is_here"]


def test_a_pointer_is_not_the_weights(found, model):
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "model.safetensors is a Git LFS pointer, not the weights" in found()["model_is_here"]


@pytest.mark.parametrize("flag", ["prompt_data", "eval_data"])
def test_data_that_is_not_there(found, prompts, flag):
    wrong = prompts.with_name("trian.jsonl")
    assert found(**{flag: wrong})["data_is_here"] == (
        f"error: --{flag} {wrong}: there is no such file or folder (there is train.jsonl)"
    )


def test_each_missing_source_is_named_with_its_slice(found, prompts):
    text = found(prompt_data=f"{prompts}@[:8],a.jsonl@[0:5],b.parquet")["data_is_here"]
    assert "--prompt_data a.jsonl@[0:5]: there is no such" in text
    assert "--prompt_data b.parquet: there is no such" in text


def test_data_of_a_kind_that_cannot_be_read(found, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert ".csv cannot be read: give .jsonl" in found(prompt_data=tmp_path / "rows.csv")["data_is_here"]


def test_an_empty_file_and_an_empty_list(found, tmp_path):
    (tmp_path / "none.jsonl").touch()
    assert "the file is empty" in found(prompt_data=tmp_path / "none.jsonl")["data_is_here"]
    assert "names no source" in found(prompt_data=",")["data_is_here"]


def test_a_data_set_of_the_hub_offline(found, tmp_path):
    assert "data_is_here" not in found(prompt_data="org/data")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert "not in the cache" in found(prompt_data="org/data", environ=offline)["data_is_here"]
    (tmp_path / "datasets" / "org___data").mkdir(parents=True)
    assert "data_is_here" not in found(prompt_data="org/data", environ=offline)


@pytest.mark.parametrize("flag", ["save_path", "log_dir", "use_tensorboard"])
def test_a_folder_under_a_file_cannot_be_written(found, prompts, flag):
    text = found(**{flag: prompts / "out"})["folders_can_be_written"]
    assert f"--{flag} {prompts / 'out'}: {prompts} is a file, not a folder" in text


def test_a_place_that_refuses_new_folders(found):
    assert (
        "--save_path /proc/out: /proc cannot be written to: "
        in found(save_path="/proc/out")["folders_can_be_written"]
    )


def test_trying_to_write_leaves_nothing(found, tmp_path):
    before = sorted(tmp_path.iterdir())
    assert "folders_can_be_written" not in found(save_path=tmp_path / "a" / "b")
    assert sorted(tmp_path.iterdir()) == before


def test_a_reward_file_that_is_not_there(found, tmp_path):
    text = found(reward=["math", f"{tmp_path}/r.py:score:0.5"])["reward_files_are_here"]
    assert text == f"error: --reward {tmp_path}/r.py:score: there is no file {tmp_path}/r.py"
    (tmp_path / "r.py").touch()
    assert "reward_files_are_here" not in found(reward=f"{tmp_path}/r.py:score")


def test_a_recipe_that_cannot_be_read(found, tmp_path):
    recipe = tmp_path / "recipe.json"
    assert "there is no such file" in found(reward_recipe=recipe)["recipe_is_readable"]
    recipe.write_text("{")
    assert "not JSON" in found(reward_recipe=recipe)["recipe_is_readable"]
    recipe.write_text("[]")
    assert "needs an object of label: reward" in found(reward_recipe=recipe)["recipe_is_readable"]
    recipe.write_text("{}")
    assert "recipe_is_readable" not in found(reward_recipe=recipe)


def test_what_is_needed_to_train_is_a_warning_in_a_plan(found):
    text = found(dry_run=True, prompt_data=None, save_path=None)["needed_to_train"]
    assert text == (
        "warning: --prompt_data is needed to train, not to plan\n"
        "warning: --save_path is needed to train, not to plan"
    )


def test_sequences_longer_than_the_model_was_made_for(found):
    text = found(max_len=40000)["model_reaches_max_len"]
    assert "max_len (40000) is over the 32768 positions" in text
    assert "use --max_len 32768" in text
    assert "model_reaches_max_len" not in found(max_len=32768)
