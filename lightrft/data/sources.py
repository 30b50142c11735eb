"""Rows of a data set, from a file, a folder or the hub. An unreadable row costs itself, not the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightrft.config.sources import Source
from lightrft.errors import DataError


@dataclass(frozen=True)
class RowProblem:
    """Why a row is dropped. Example: `RowProblem("train.jsonl:4", "broken JSON", "Expecting value")`."""

    source: str  # "file:row", rows counted from 1; lines of a .jsonl file
    reason: str  # one of a few words, to count by
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Row:
    """One row as the file has it: column -> value."""

    source: str
    values: Mapping[str, Any]


def read_rows(source: Source, split: str) -> list[Row | RowProblem]:
    """All rows of one source, or those of its slice.

    `split` chooses within a data set that has several; a single file is what it is.

    Raises:
        DataError: there is no such source or split, or it cannot be read at all.
    """
    if "@[" in source.name:
        raise DataError(
            f"{source}: a slice is written path@[a:b] with whole numbers, as in data.jsonl@[0:100]"
        )
    return list(_open(source.name, split))[source.start : source.stop]


def _open(path: str, split: str) -> Iterable[Row | RowProblem]:
    local = Path(path).expanduser()
    if local.is_dir():
        return _read_folder(local, split)
    reader = READERS.get(local.suffix)
    if local.exists() and reader is None:
        raise DataError(f"{path}: {local.suffix or 'a file without a suffix'} cannot be read; use {_known()}")
    if not local.exists() and (reader is not None or path.startswith((".", "/", "~"))):
        raise DataError(f"{path}: there is no such file or folder")
    if reader is None:
        return _read_hub(path, split)
    try:
        return reader(local)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _known() -> str:
    return f"{', '.join(READERS)}, a saved dataset folder, or a name on the hub"


def _parsed(source: str, raw: bytes) -> Row | RowProblem:
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return RowProblem(source, "not UTF-8", f"byte {error.start} is {raw[error.start]:#04x}")
    except (ValueError, RecursionError) as error:
        return RowProblem(source, "broken JSON", str(error))
    return _row(source, values)


def _row(source: str, values: Any) -> Row | RowProblem:
    if isinstance(values, dict):
        return Row(source, values)
    return RowProblem(
        source, "not an object", f"a row is {{column: value, …}}, this is a {type(values).__name__}"
    )


def _read_lines(path: Path) -> list[Row | RowProblem]:
    with path.open("rb") as file:
        return [_parsed(f"{path}:{number}", line) for number, line in enumerate(file, 1) if line.strip()]


def _read_json(path: Path) -> list[Row | RowProblem]:
    """A JSON array of objects. A `.json` file that is no array is read as JSON lines, as many are."""
    raw = path.read_bytes()
    if raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"[":
        return _read_lines(path)
    try:
        rows = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: this JSON array cannot be parsed: {error}") from error
    return [_row(f"{path}:{number}", values) for number, values in enumerate(rows, 1)]


def _read_parquet(path: Path) -> Iterator[Row]:
    return _rows_of(_load_dataset("parquet", str(path), data_files=str(path), split="train"), str(path))


def _read_arrow(path: Path) -> Iterator[Row]:
    from datasets import Dataset

    try:
        return _rows_of(Dataset.from_file(str(path)), str(path))
    except Exception as error:  # pyarrow and datasets raise a dozen kinds; the path is what the user needs
        raise DataError(f"{path}: cannot be read: {_first_line(error)}") from error


READERS: dict[str, Callable[[Path], Iterable[Row | RowProblem]]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def _read_folder(folder: Path, split: str) -> Iterable[Row | RowProblem]:
    """A folder written by `save_to_disk`, one with `<split>.jsonl` and the like, or a data set repository's
    copy.
    """
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return _read_saved(folder, split)
    for suffix in READERS:
        if (folder / f"{split}{suffix}").exists():
            return _open(str(folder / f"{split}{suffix}"), split)
    return _rows_of(_load_dataset(str(folder), str(folder), split=split), str(folder))


def _read_saved(folder: Path, split: str) -> Iterator[Row]:
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{folder}: this saved dataset cannot be read: {_first_line(error)}") from error
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise DataError(f"{folder}: there is no split {split!r}; it has {', '.join(dataset)}")
        dataset = dataset[split]
    return _rows_of(dataset, str(folder))


def _read_hub(name: str, split: str) -> Iterator[Row]:
    """`owner/name`, or `owner/name:configuration` for a data set that has several."""
    repository, _, configuration = name.partition(":")
    return _rows_of(_load_dataset(repository, name, name=configuration or None, split=split), name)


def _load_dataset(builder: str, shown: str, **kwargs: Any) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(builder, **kwargs)
    except Exception as error:
        hint = "" if Path(shown).exists() else f"; a data set is {_known()}"
        raise DataError(f"{shown}: cannot be loaded: {_first_line(error)}{hint}") from error


def _first_line(error: Exception) -> str:
    text = str(error.__cause__ or error).strip() or type(error).__name__
    return text.splitlines()[0]


def _rows_of(dataset: Any, shown: str) -> Iterator[Row]:
    for number, values in enumerate(_undecoded(dataset), 1):
        yield Row(f"{shown}:{number}", values)


def _undecoded(dataset: Any) -> Any:
    """Images, videos and sounds as the files that they are: a damaged one would end the iteration."""
    features = getattr(dataset, "features", None) or {}
    for name, feature in features.items():
        plain = _without_decoding(feature)
        if plain != feature:
            dataset = dataset.cast_column(name, plain)
    return dataset


def _without_decoding(feature: Any) -> Any:
    from datasets import Audio, Image, List, Video

    if isinstance(feature, Image | Video | Audio):
        return type(feature)(decode=False)
    if isinstance(feature, List):
        return List(_without_decoding(feature.feature), length=feature.length)
    if isinstance(feature, dict):
        return {name: _without_decoding(inner) for name, inner in feature.items()}
    return feature
