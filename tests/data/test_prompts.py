"""Loading a whole data set: what is kept, what is reported, and when there is nothing to train on."""

import time

import pytest

from lightrft.data.prompts import DataReport, PromptOptions, load_prompts, mix
from lightrft.data.sources import RowProblem
from lightrft.errors import ConfigError, DataError
from lightrft.types import Prompt

ROWS = [{"input": f"{i}+1=", "reference": str(i + 1)} for i in range(4)]


def load(spec, processor, **options):
    return load_prompts(str(spec), PromptOptions(**options), processor)


def test_rows_become_numbered_encoded_prompts(write, processor):
    path = write("a.jsonl", *ROWS)
    prompts = load(path, processor, apply_chat_template=True)
    assert [p.index for p in prompts] == [0, 1, 2, 3]
    assert prompts[1].text == "<s><u>1+1=<a>"
    assert processor.decode(prompts[1].token_ids) == "1+1="
    assert prompts[1].references == ["2"]
    assert prompts[1].messages == [{"role": "user", "content": "1+1="}]
    assert prompts[1].source == f"{path}:2"
    assert [p.index for p in prompts[1:3]] == [1, 2]
    assert str(prompts.report) == "4 rows, 4 prompts"


def test_bad_rows_of_every_kind_are_counted_reported_and_dropped(write, processor):
    path = write(
        "a.jsonl",
        ROWS[0],
        b"\xff",
        b"{",
        {"answer": "1"},
        {"input": ""},
        {"input": "y" * 40},
        {"input": [{"role": "tool", "content": "x"}]},
        ROWS[1],
    )
    prompts = load(path, processor, prompt_max_len=20)
    assert [(p.index, p.source) for p in prompts] == [(0, f"{path}:1"), (1, f"{path}:8")]
    report = prompts.report
    assert (report.rows, report.kept) == (8, 2)
    assert report.counts == {
        "not UTF-8": 1,
        "broken JSON": 1,
        "missing key": 1,
        "empty prompt": 1,
        "prompt too long": 1,
        "cannot be encoded": 1,
    }
    text = str(report)
    assert "6 rows dropped: 1 not UTF-8, 1 broken JSON" in text
    assert f"{path}:3: broken JSON" in text
    assert text.endswith("… and 1 more")
    assert "41 tokens, prompt_max_len is 20" in str([str(p) for p in report.problems])


def test_strict_data_lists_the_bad_rows(write, processor):
    path = write("a.jsonl", ROWS[0], b"{", {"input": " "})
    with pytest.raises(DataError) as error:
        load(path, processor, strict_data=True)
    assert f"{path}:2: broken JSON" in str(error.value)
    assert f"{path}:3: empty prompt" in str(error.value)


def test_long_prompts_can_be_cut_on_the_left(write, processor):
    prompts = load(
        write("a.jsonl", {"input": "abcdefgh"}, ROWS[0]), processor, prompt_max_len=5, truncate_prompts=True
    )
    assert prompts[0].text == "<s>efgh"
    assert len(prompts[0].token_ids) == 5
    assert prompts.report.truncated == 1
    assert str(prompts.report) == "2 rows, 2 prompts, 1 truncated"


@pytest.mark.parametrize("rows", [[], [b"{"], [{"input": ""}]])
def test_a_source_with_nothing_usable_is_an_error_that_says_why(rows, write, processor):
    path = write("a.jsonl", *rows)
    with pytest.raises(DataError, match=rf"{path}: no prompt is left: {len(rows)} rows, 0 prompts"):
        load(path, processor)


def test_no_source_at_all_is_an_error(processor):
    with pytest.raises(DataError, match="no data set is named"):
        load(" , ", processor)


def test_several_sources_follow_each_other_with_their_slices(write, processor):
    a, b = write("a.jsonl", *ROWS), write("b.jsonl", {"question": "q", "answer": "#### 9"})
    prompts = load(f"{a}@[:2], {b}", processor)
    assert [p.text for p in prompts] == ["0+1=", "1+1=", "q"]
    assert [p.index for p in prompts] == [0, 1, 2]


def test_the_fingerprint_is_of_the_content_not_of_the_place(write, processor):
    first = load(write("a.jsonl", *ROWS), processor).fingerprint()
    assert load(write("b.jsonl", *ROWS), processor).fingerprint() == first
    assert load(write("c.jsonl", *reversed(ROWS)), processor).fingerprint() != first
    assert load(write("d.jsonl", *ROWS[:3]), processor).fingerprint() != first
    changed = [ROWS[0] | {"reference": "2"}, *ROWS[1:]]
    assert load(write("e.jsonl", *changed), processor).fingerprint() != first
    assert load(write("a.jsonl", *ROWS), processor, apply_chat_template=True).fingerprint() != first


def test_dropping_prompts_renumbers_and_reports(write, processor):
    path = write("a.jsonl", *ROWS)
    kept = load(path, processor).drop({1: "no number", 2: "no number"})
    assert [(p.index, p.text) for p in kept] == [(0, "0+1="), (1, "3+1=")]
    assert kept.report.counts == {"cannot be graded": 2}
    assert f"{path}:2: cannot be graded (no number)" in str(kept.report)


def test_dropping_all_or_any_under_strict_is_an_error(write, processor):
    prompts = load(write("a.jsonl", *ROWS), processor)
    with pytest.raises(DataError, match="no prompt is left"):
        prompts.drop(dict.fromkeys(range(4), "no number"))
    with pytest.raises(DataError, match="--strict_data"):
        prompts.drop({0: "no number"}, strict=True)
    assert len(prompts.drop({}, strict=True)) == 4


def some_prompts(name, count):
    return [Prompt(i, [1], f"{name}{i}", source=name) for i in range(count)]


def test_a_mixture_draws_by_probability_in_order_without_repeats():
    sources = [some_prompts("a", 4000), some_prompts("b", 4000)]
    mixed = mix(sources, [0.75, 0.25], seed=1)
    assert mixed == mix(sources, [0.75, 0.25], seed=1)
    assert mixed != mix(sources, [0.75, 0.25], seed=2)
    from_a = [p.text for p in mixed if p.source == "a"]
    from_b = [p.text for p in mixed if p.source == "b"]
    assert from_a == [f"a{i}" for i in range(len(from_a))]
    assert from_b == [f"b{i}" for i in range(len(from_b))]
    assert len(from_a) == 4000
    assert len(from_a) / len(mixed) == pytest.approx(0.75, abs=0.02)


def test_a_mixture_is_loaded_reported_and_checked(write, processor):
    a, b = write("a.jsonl", *ROWS), write("b.jsonl", *ROWS)
    prompts = load(f"{a},{b}", processor, data_probs=(1.0, 0.0))
    assert [p.source for p in prompts] == [f"{a}:{i}" for i in (1, 2, 3, 4)]
    assert str(prompts.report) == "8 rows, 4 prompts, 4 beyond the mixture"
    with pytest.raises(
        ConfigError, match=r"--prompt_data_probs 1\.0: give one .* for each of the 2 data sets"
    ):
        load(f"{a},{b}", processor, data_probs=(1.0,))


def test_a_report_shows_the_first_problems_and_counts_the_rest():
    report = DataReport(rows=9, problems=[RowProblem(f"a:{i}", "empty prompt") for i in range(1, 10)])
    lines = str(report).splitlines()
    assert lines[1] == "9 rows dropped: 9 empty prompt"
    assert lines[2] == "  a:1: empty prompt"
    assert lines[-1] == "  … and 4 more"


def test_the_size_of_gsm8k_loads_in_seconds(write, processor):
    question = "Natalia sold clips to 48 of her friends in April, and then half as many in May. " * 3
    path = write("big.jsonl", *({"question": question, "answer": f"#### {i}"} for i in range(7473)))
    start = time.monotonic()
    prompts = load(path, processor, apply_chat_template=True)
    assert len(prompts) == 7473
    assert time.monotonic() - start < 10
