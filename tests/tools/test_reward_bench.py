"""The bench finds what is wrong with a grader, and finds nothing where nothing is wrong."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest

from lightrft.errors import DataError
from lightrft.tools.bench_samples import as_response, saved_samples
from lightrft.tools.reward_bench import main

DATA = os.environ.get("LIGHTRFT_TEST_DATA", "")
real_data = pytest.mark.skipif(not DATA, reason="LIGHTRFT_TEST_DATA names no folder with the real sets")

ROWS = [
    {"question": "6*7?", "answer": "6*7=<<6*7=42>>42\n#### 42"},
    {"question": "1+1?", "answer": "2"},
    {"question": "Half?", "answer": r"It is $\boxed{\frac{1}{2}}$."},
    {"question": "None?"},
]
GRADER = """
    import time

    def slow(response, references):
        if "2" in references:
            time.sleep(0.05)
        if "42" in references:
            return 0.25
        return 1.0
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{broken\n")
    (tmp_path / "grader.py").write_text(textwrap.dedent(GRADER))
    return path


def test_own_answers_earn_whole_rewards_and_what_cannot_be_used_is_listed(rows, capsys):
    assert main(["--reward", "gsm8k", "math", "--data", str(rows)]) == 0
    said = capsys.readouterr().out
    lines = {
        line.split()[0]: line.split() for line in said.splitlines() if line.startswith(("gsm8k ", "math "))
    }
    assert lines["math"][1:7] == ["1.0000", "3/3", "0", "0", "0", "0"]
    assert "gsm8k" in said
    assert f"{rows}:4: no answer of its own" in said
    assert "broken JSON" in said


def test_a_grader_that_is_wrong_is_found_with_row_reason_and_time(rows, tmp_path, capsys):
    page = tmp_path / "out" / "page.html"
    words = [
        "--reward",
        f"{tmp_path}/grader.py:slow",
        "exact_match",
        "--data",
        str(rows),
        "--html",
        str(page),
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"slow {rows}:1: scored 0.25" in said
    [row] = [line.split() for line in said.splitlines() if line.startswith("slow    ")][:1]
    assert row[2:4] == ["2/3", "1"]
    assert 45 < float(row[8]) < 2000  # ms: the row that sleeps 50
    [pair] = [line.split() for line in said.splitlines() if "exact_match" in line and line.startswith("slow")]
    assert pair == ["slow", "exact_match", "3", "0.6667", "1", "0"]
    text = page.read_text()
    assert "<h2>Slowest rows</h2>" in text
    assert "scored 0.25" in text
    assert list(page.parent.iterdir()) == [page]


def test_what_a_model_wrote_is_shown_on_the_page_and_never_run(tmp_path):
    dump = tmp_path / "step_000001.jsonl"
    dump.write_text(json.dumps({"response": "<script>alert(1)</script>\ud800", "references": ["1"]}) + "\n")
    page = tmp_path / "page.html"
    assert main(["--reward", "math", "--rollouts", str(dump), "--html", str(page)]) == 0
    assert "<script>" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()


def test_a_saved_rollout_is_graded_again_and_compared_with_the_run(tmp_path, capsys):
    def line(response, reward, **more):
        return json.dumps({"response": response, "references": ["42"], "reward": reward, **more})

    dump = tmp_path / "step_000010.jsonl"
    lines = [
        line(r"\boxed{42}", 1.0, source="a.jsonl:1", parts={"math": 1.0}),
        line("no idea", 0.0, source="a.jsonl:2", parts={"math": 0.0}),
        line("#### 42", 0.0, source="a.jsonl:3", parts={"math": 0.0}),  # the run was wrong
        line(r"\boxed{41}", None, source="a.jsonl:4", status="timeout", parts={"math": None}),
        '{"response": 3, "references": []}',
    ]
    dump.write_text("\n".join(lines) + "\n")
    assert main(["--reward", "math", "--rollouts", str(dump)]) == 0
    said = capsys.readouterr().out
    assert f"4 rollouts of {dump}" in said
    assert ["math", "saved", "3", "0.6667", "1", "0"] in [x.split() for x in said.splitlines()]
    assert "math a.jsonl:2: states no answer that it can read" in said
    assert "step_000010.jsonl:5: unusable line (TypeError: response is a text" in said


def test_the_files_that_a_run_writes_can_be_read(tmp_path):
    from lightrft.observability.trajectories import TrajectoryWriter
    from lightrft.types import Prompt, RewardResult, Rollout

    rollout = Rollout(Prompt(0, [1], "q", ["2"], source="a:1"), 1, [5], "It is 2", "length")
    result = RewardResult([0.5], {"gsm8k/answer": [1.0]}, ["ok"])
    path = TrajectoryWriter(tmp_path).write(1, [rollout], result)
    samples = saved_samples(path)
    assert samples.saved == result
    assert samples.rollouts[0].text == "It is 2"
    assert samples.rollouts[0].finish_reason == "length"
    assert samples.rollouts[0].prompt.references == ["2"]


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("so\n#### 4", "so\n#### 4"),
        (r"is \boxed{4}", r"is \boxed{4}"),
        ("4", r"<think>It is known.</think> \boxed{4}"),
    ],
)
def test_an_answer_becomes_a_response(answer, response):
    assert as_response(answer) == response


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reward", "gsm8", "--data", "{rows}"], "did you mean gsm8k?"),
        (["--data", "{rows}"], "--reward is missing"),
        (["--reward", "math", "--data", "/nowhere/a.jsonl"], "there is no such file or folder"),
        (["--reward", "math", "--rollouts", "/nowhere/a.jsonl"], "No such file or directory"),
        (["--reward", "math", "--data", "{rows}", "--refrence_key", "x"], "did you mean --reference_key?"),
        (["--reward", "math", "--data", "{rows}", "--reference_key", "x"], "no prompt is left"),
        (["--reward", "math", "--data", "{rows}", "--zero_stage", "3"], "--zero_stage: this tool takes"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_2(rows, capsys, words, message):
    assert main([word.format(rows=rows) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("reward_bench: error: ")
    assert message in said


def test_a_file_without_a_usable_line_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[]\n")
    with pytest.raises(DataError, match="no line holds a response"):
        saved_samples(path)


SETS = {
    "gsm8k/test.jsonl": (1319, []),
    "gsm8k/train.jsonl": (7473, []),
    "math500.json": (500, ["--reference_key", "final_answer"]),
    "math/test.jsonl": (5000, ["--reference_key", "solution"]),
    "svamp/test.jsonl": (1000, ["--reference_key", "Answer", "--input_key", "Question"]),
}


@real_data
@pytest.mark.parametrize("name", SETS)
def test_the_answers_of_real_sets_are_right(name, capsys):
    count, words = SETS[name]
    graders = ["math"] if "math" in name else ["gsm8k", "math"]
    assert main(["--reward", *graders, "--data", f"{DATA}/{name}", *words]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    for grader in graders:
        assert [grader, "1.0000", f"{count}/{count}"] in [words[:3] for words in said]
