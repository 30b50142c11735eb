"""Every source gives the same rows; an unreadable line costs only itself; an unreadable source names
itself.
"""

import json

import pytest
from datasets import Dataset, DatasetDict

from lightrft.config.sources import split_sources
from lightrft.data.sources import Row, RowProblem, read_rows
from lightrft.errors import DataError

ROWS = [{"question": f"{i}+1", "answer": f"#### {i + 1}"} for i in range(5)]


def read(spec, split="train"):
    (source,) = split_sources(str(spec))
    return read_rows(source, split)


def values(rows):
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.values for row in rows]


def as_jsonl(folder):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def as_json(folder):
    path = folder / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


def as_json_lines(folder):
    return as_jsonl(folder).rename(folder / "lines.json")


def as_parquet(folder):
    Dataset.from_list(ROWS).to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


def as_saved(folder):
    Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return folder / "saved"


def as_saved_splits(folder):
    DatasetDict({"train": Dataset.from_list(ROWS)}).save_to_disk(folder / "splits")
    return folder / "splits"


def as_arrow(folder):
    return next(as_saved(folder).glob("*.arrow"))


def as_folder_of_files(folder):
    (folder / "files").mkdir()
    as_jsonl(folder).rename(folder / "files" / "train.jsonl")
    return folder / "files"


@pytest.mark.parametrize(
    "make",
    [as_jsonl, as_json, as_json_lines, as_parquet, as_saved, as_saved_splits, as_arrow, as_folder_of_files],
)
def test_every_form_gives_the_same_rows_with_their_numbers(make, tmp_path):
    path = make(tmp_path)
    rows = read(path)
    assert values(rows) == ROWS
    assert [row.source.rpartition(":")[2] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0].source.startswith(str(path))


@pytest.mark.parametrize(
    ("cut", "kept"), [("[:2]", [0, 1]), ("[3:]", [3, 4]), ("[1:-1]", [1, 2, 3]), ("[9:]", [])]
)
@pytest.mark.parametrize("make", [as_jsonl, as_parquet])
def test_a_slice_counts_as_python_does(make, cut, kept, tmp_path):
    assert values(read(f"{make(tmp_path)}@{cut}")) == [ROWS[i] for i in kept]


def test_a_slice_keeps_the_numbers_of_the_file(tmp_path):
    assert read(f"{as_jsonl(tmp_path)}@[3:]")[0].source.endswith("rows.jsonl:4")


def test_a_broken_line_costs_only_itself_and_is_named_by_its_line(write):
    path = write("a.jsonl", ROWS[0], b'{"question": "caf\xe9"}', b"", b'{"question": ', b"[1, 2]", ROWS[1])
    rows = read(path)
    assert [type(row) for row in rows] == [Row, RowProblem, RowProblem, RowProblem, Row]
    problems = {row.source: (row.reason, row.detail) for row in rows if isinstance(row, RowProblem)}
    assert problems[f"{path}:2"] == ("not UTF-8", "byte 17 is 0xe9")
    assert problems[f"{path}:4"][0] == "broken JSON"
    assert problems[f"{path}:5"][0] == "not an object"
    assert rows[4].source == f"{path}:6"


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in ROWS))
    assert values(read(path)) == ROWS


def test_json_nested_beyond_the_parser_is_a_bad_row(write):
    rows = read(write("a.jsonl", b"[" * 100_000, ROWS[0]))
    assert rows[0].reason == "broken JSON"
    assert rows[1].values == ROWS[0]


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/nowhere/data.parquet"])
def test_a_missing_file_is_named(name):
    with pytest.raises(DataError, match=rf"{name}: there is no such file"):
        read(name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_corrupt_file_is_named(name, write):
    path = write(name, b"this is no table")
    with pytest.raises(DataError, match=str(path)):
        read(path)


def test_a_broken_json_array_says_where(write):
    with pytest.raises(DataError, match=r"a\.json: this JSON array cannot be parsed: .*line 2 column 4"):
        read(write("a.json", b'[{"a": 1},', b"  {]"))


def test_a_suffix_that_no_reader_knows_lists_those_that_are(write):
    with pytest.raises(DataError, match=r"\.csv cannot be read; use \.jsonl, \.json, \.parquet"):
        read(write("a.csv", b"a,b"))


def test_a_malformed_slice_shows_the_right_form(tmp_path):
    with pytest.raises(DataError, match=r"path@\[a:b\] with whole numbers"):
        read(f"{as_jsonl(tmp_path)}@[x:2]")


@pytest.mark.parametrize("make", [as_saved_splits, as_folder_of_files])
def test_a_missing_split_is_an_error_and_never_the_training_split(make, tmp_path):
    with pytest.raises(DataError, match="train") as error:
        read(make(tmp_path), split="test")
    assert "test" in str(error.value)


def test_a_hub_name_that_cannot_be_reached_says_what_a_data_set_is(monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("couldn't reach the hub\nand more lines")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"^nobody/nothing: cannot be loaded: couldn't reach the hub; a data"):
        read("nobody/nothing")


def test_a_hub_name_passes_its_configuration_and_split(monkeypatch):
    import datasets

    calls = []

    def load_dataset(builder, **kwargs):
        calls.append((builder, kwargs))
        return ROWS

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read("openai/gsm8k:main@[:2]", split="test")
    assert values(rows) == ROWS[:2]
    assert rows[1].source == "openai/gsm8k:main:2"
    assert calls == [("openai/gsm8k", {"name": "main", "split": "test"})]
