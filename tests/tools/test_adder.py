"""The quick start's material: what it teaches, what it holds out, and that it learns."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightrft.errors import ConfigError
from lightrft.tools.adder import (
    IGNORED,
    AdderOptions,
    Encoder,
    make_adder,
    noisy_answers,
    pass_rate,
    split_problems,
)
from lightrft.tools.make_tiny import main, make_tokenizer


def test_no_held_out_sum_is_trained_on_in_either_order() -> None:
    train, held_out = split_problems(top=30, eval_rows=200, seed=0)
    assert len(held_out) == 200
    assert not {frozenset(p) for p in train} & {frozenset(p) for p in held_out}
    assert len(set(train)) == len(train)
    assert len(train) + len(held_out) in (31 * 31, 31 * 31 - 1)  # the last pair may be held out by half
    assert split_problems(30, 200, 0) == (train, held_out)
    assert split_problems(30, 200, 1) != (train, held_out)


def test_more_held_out_than_left_to_learn_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"--eval_rows 200 with --top 10: .* use --eval_rows 59"):
        split_problems(top=10, eval_rows=200, seed=0)
    train, held_out = split_problems(top=10, eval_rows=59, seed=0)
    assert len(train) >= len(held_out) == 59


def test_lessons_are_what_the_chat_template_writes() -> None:
    tokenizer = make_tokenizer("chars")
    encoder = Encoder(tokenizer, top=30)
    batch = encoder.lessons([(12, 7), (3, 1)], [19, 4])
    for row, (question, answer) in enumerate([("12+7=", "19"), ("3+1=", "4")]):
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        written = tokenizer.encode(
            str(tokenizer.apply_chat_template(chat, tokenize=False)), add_special_tokens=False
        )
        real = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][real].tolist() == written
        taught = batch["labels"][row] != IGNORED
        assert tokenizer.decode(batch["labels"][row][taught]) == f"{answer}<eos>"
        assert batch["input_ids"][row][taught].tolist() == batch["labels"][row][taught].tolist()


def test_questions_are_padded_on_the_left() -> None:
    tokenizer = make_tokenizer("chars")
    batch = Encoder(tokenizer, top=30).prompts([(12, 7), (3, 1)])
    assert tokenizer.batch_decode(batch["input_ids"]) == ["<u>12+7=<a>", "<pad><u>3+1=<a>"]
    assert batch["attention_mask"].tolist() == [[1] * 7, [0] + [1] * 6]


def test_the_share_of_wrong_answers_is_the_noise() -> None:
    problems = [(20, 7)] * 4000
    answers = noisy_answers(problems, 0.6, random.Random(0))
    assert sum(n != 27 for n in answers) / 4000 == pytest.approx(0.6, abs=0.03)
    assert {abs(n - 27) for n in answers} == {0, 1, 2, 9, 10, 11}
    assert noisy_answers([(0, 0)] * 50, 1.0, random.Random(0)).count(0) < 50
    assert min(noisy_answers([(0, 0)] * 50, 1.0, random.Random(0))) == 0  # no negative numbers
    assert noisy_answers(problems, 0.0, random.Random(0)) == [27] * 4000


class Oracle:
    """Answers every question of `answers` with its text, whatever is asked."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = torch.tensor(rows)

    def generate(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.cat([input_ids, self.rows], dim=1)


def test_the_pass_rate_counts_exact_answers_only() -> None:
    tokenizer = make_tokenizer("chars")
    problems = [(12, 7), (12, 7), (12, 7), (1, 1)]
    answers = ["19<eos><pad>", "119<eos>", "9<eos><pad><pad>", "2<eos><pad><pad>"]
    oracle = Oracle([tokenizer.encode(a, add_special_tokens=False) for a in answers])
    exam = Encoder(tokenizer, top=30).prompts(problems)
    assert pass_rate(oracle, tokenizer, exam, problems, sample=False) == 0.5


def test_the_command_writes_a_model_and_rows_like_a_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--top=9", "--steps=4", "--train_rows=150", "--eval_rows=20", "--layers=1"]
    main(["adder", str(tmp_path / "model"), *flags])
    train, held_out = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("train.jsonl", "eval.jsonl")
    )
    assert (len(train), len(held_out)) == (150, 20)
    for row in train + held_out:
        a, b = row["input"].removesuffix("=").split("+")
        assert row == {"input": f"{a}+{b}=", "reference": str(int(a) + int(b))}
    assert not {r["input"] for r in train} & {r["input"] for r in held_out}
    assert len({r["input"] for r in train[:80]}) == 80  # every sum comes once before any comes again
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
    assert "step 4/4 loss" in capsys.readouterr().out


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    options = AdderOptions(top=9, steps=3, eval_rows=20, train_rows=50, layers=1, seed=7)
    scores = [make_adder(tmp_path / run / "model", options) for run in ("one", "two")]
    assert scores[0] == scores[1]
    for name in ("model/model.safetensors", "train.jsonl", "eval.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_warm_up_leaves_a_model_that_solves_a_part(tmp_path: Path) -> None:
    """The quick start needs room below and above: right answers to find, and mixed groups."""
    greedy, sampled = make_adder(tmp_path / "model", AdderOptions())
    assert 0.45 < greedy < 0.9
    assert 0.12 < sampled < 0.4
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "model").config
    assert config.hidden_size // config.num_attention_heads >= 32
