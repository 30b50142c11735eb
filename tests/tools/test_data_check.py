"""The check says of data what a run would do with it."""

from __future__ import annotations

import json

import pytest

from lightrft.tools.data_check import histogram, main


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = [{"input": f"{i}+{i}=", "reference": str(2 * i), "label": "sum"} for i in range(8)]
    bad = [{"input": "1" * 40, "reference": "1"}, {"reference": "1"}, {"input": "a?", "reference": "many"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*good, good[0], *bad]) + "\xff\n", "latin-1")
    return path


def words(tiny_model, rows, *more):
    return ["--pretrain", str(tiny_model), "--prompt_data", str(rows), "--prompt_max_len", "20", *more]


def test_rows_lengths_and_a_preview(tiny_model, rows, tmp_path, capsys):
    page = tmp_path / "page.html"
    more = ["--apply_chat_template", "--reward", "gsm8k", "--eval_data", f"{rows}@[:2]", "--html", str(page)]
    assert main(words(tiny_model, rows, *more)) == 1  # rows were dropped
    said = capsys.readouterr().out
    assert "--prompt_data: 13 rows, 9 prompts" in said
    for reason in ("1 prompt too long", "1 missing key", "1 cannot be graded", "1 not UTF-8"):
        assert reason in said
    assert f"{rows}:10: prompt too long (42 tokens, prompt_max_len is 20)" in said
    assert "shortest 4, median 6, 95 % up to" in said
    assert "longest 42; --prompt_max_len 20" in said
    assert "9 of 9 prompts have a reference; 1 repeat an earlier prompt" in said
    assert "1 labels: sum" in said
    assert "over 20  1 " in said
    assert f"as the model sees {rows}:1, 6 tokens:\n<u>0+0=<a>\nreferences: ['0']\nlabel: sum" in said
    assert "2 prompts of --eval_data are in --prompt_data as well" in said
    assert "&lt;u&gt;0+0=&lt;a&gt;" in page.read_text()


def test_good_data_is_exit_status_0(tiny_model, rows, capsys):
    assert main(words(tiny_model, f"{rows}@[:8]")) == 0
    assert "8 rows, 8 prompts" in capsys.readouterr().out


def test_strict_data_is_an_error_that_lists_the_rows(tiny_model, rows, capsys):
    assert main(words(tiny_model, rows, "--strict_data")) == 2
    assert "--strict_data is on" in capsys.readouterr().err


def test_what_is_missing_is_named(tiny_model, capsys):
    assert main(["--apply_chat_template"]) == 2
    assert "--pretrain and --prompt_data missing" in capsys.readouterr().err
    assert main(["--pretrain", "/nowhere/m", "--prompt_data", "/nowhere/a.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "--pretrain /nowhere/m: there is no such folder" in said
    assert "--prompt_data /nowhere/a.jsonl: there is no such file" in said


def test_the_histogram_counts_every_row_once():
    rows = histogram([1, 5, 5, 10, 11, 40], 10)
    assert [(name, count) for name, count, _ in rows if count] == [
        ("1-1", 1),
        ("5-5", 2),
        ("10-10", 1),
        ("over 10", 2),
    ]
    assert sum(count for _, count, _ in histogram(range(1, 2050), 2000)) == 2049
    assert histogram([7], 20)[3] == ("7-8", 1, "#" * 50)
