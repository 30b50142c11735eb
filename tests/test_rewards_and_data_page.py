"""The user's page on data and rewards: its rows load, its functions score, its names exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

from lightrft import registry
from lightrft.config.flags import FLAGS
from lightrft.data.processors import TextProcessor
from lightrft.data.prompts import PromptOptions, load_prompts
from lightrft.data.rows import INPUT_KEYS, LABEL_KEYS, REFERENCE_KEYS
from lightrft.rewards.build import RewardOptions, build_reward
from lightrft.rewards.rules import gsm8k
from lightrft.rewards.worker import RULES
from lightrft.tools import data_check, reward_bench
from lightrft.types import Prompt, Rollout
from tests.data.characters import make_tokenizer

PAGE = (Path(__file__).parent.parent / "docs" / "rewards_and_data.md").read_text()


def snippets(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def rollouts(responses, references):
    prompt = Prompt(0, [1], "q", references)
    return [Rollout(prompt, i, [2], text, "stop") for i, text in enumerate(responses)]


def test_the_rows_shown_load(tmp_path):
    (rows,) = snippets("jsonl")
    (tmp_path / "rows.jsonl").write_text(rows)
    prompts = load_prompts(str(tmp_path / "rows.jsonl"), PromptOptions(), TextProcessor(make_tokenizer()))
    assert prompts.report.problems == []
    assert [p.references for p in prompts] == [["42"], ["42", "forty-two"], ["42"], ["42"]]
    assert len(prompts) == len([json.loads(line) for line in rows.splitlines()])


def test_the_functions_shown_score(tmp_path):
    for source in snippets("python"):
        name = re.match(r"def (\w+)", source)[1]
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        reward = build_reward([f"{path}:{name}"], RewardOptions(num_workers=1))
        result = reward(rollouts(["42, thank you", "7"], ["42"]))
        reward.close()
        assert result.rewards[1] == 0.0
        assert result.rewards[0] == pytest.approx({"short": 0.987, "polite": 1.0}[name])


def test_the_programs_shown_run(tmp_path, tiny_model, capsys):
    (rows,) = snippets("jsonl")
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("".join(x + "\n" for x in rows.splitlines() if "question" in x))
    names = {"MODEL": str(tiny_model)} | {n: str(tmp_path / n) for n in ("train.jsonl", "test.jsonl")}
    commands = [shlex.split(block.replace("\\\n", " ")) for block in snippets("bash")]
    for words in commands:
        program = {"data_check": data_check, "reward_bench": reward_bench}[words[2].rpartition(".")[2]]
        assert program.main([names.get(word, word) for word in words[3:]]) == 0
    assert len(commands) == 2
    said = capsys.readouterr().out
    assert "1 rows, 1 prompts" in said
    assert "gsm8k   math   1     1.0000" in said


def test_every_flag_and_rule_of_the_page_exists():
    flags = set(re.findall(r"--([a-z_]+)", PAGE))
    assert len(flags) > 10
    assert flags - set(FLAGS) == {"html", "data", "rollouts"}  # of the programs beside training
    table = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert table == set(registry.names(RULES))


def test_the_tables_of_keys_and_weights_say_what_the_code_does():
    for keys in (INPUT_KEYS, REFERENCE_KEYS, LABEL_KEYS):
        assert ", ".join(f"`{key}`" for key in keys) in PAGE
    assert f"{gsm8k.ANSWER_WEIGHT} · answer + {gsm8k.FORMAT_WEIGHT} · format" in PAGE
