"""Questions with images, from any data set, as the JSON lines and image files that `train_vl.py` reads.

    python -m lightrft.tools.prepare_vision hiyouga/geometry3k data/geo3k --split train
    python -m lightrft.tools.prepare_vision rows.jsonl data/mine --images_key image --options_key options

Each row of SOURCE (a file, a saved folder or a hub name) becomes a line of OUT/SPLIT.jsonl, its images become
PNG files below OUT/images. A row that cannot be used is named and counted, and costs no other.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightrft.config.sources import split_sources
from lightrft.data.media import media_list, picture_of
from lightrft.data.sources import Row, RowProblem, read_rows
from lightrft.errors import DataError, UserError

SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class Columns:
    """Which column holds what."""

    problem: str = "problem"
    answer: str = "answer"
    images: str = "images"
    options: str = ""  # choices, written below the question as (A), (B), …


def prepare(source: str, out: Path, split: str, columns: Columns) -> tuple[int, list[RowProblem]]:
    """Write OUT/SPLIT.jsonl and its images; returns how many rows there are, and those that were left out.

    Raises:
        DataError: the source cannot be read, or nothing of it can be used.
    """
    problems: list[RowProblem] = []
    lines = list(_lines(source, out, split, columns, problems))
    if not lines:
        shown = "; ".join(map(str, problems[:SHOWN_PROBLEMS]))
        raise DataError(f"{source}: no row can be used: {shown or 'there is none'}")
    path = out / f"{split}.jsonl"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)
    return len(lines), problems


def _lines(source: str, out: Path, split: str, columns: Columns, problems: list[RowProblem]) -> Iterator[str]:
    (out / "images").mkdir(parents=True, exist_ok=True)
    for part in split_sources(source):
        base = part.path if part.is_local else Path()
        folder = base if base.is_dir() else base.parent
        for number, row in enumerate(read_rows(part, split)):
            if isinstance(row, RowProblem):
                problems.append(row)
                continue
            try:
                made = _row(row, folder, out, f"{split}_{number:06d}", columns)
            except DataError as error:
                problems.append(RowProblem(row.source, "unusable", str(error)))
            else:
                yield json.dumps(made, ensure_ascii=False) + "\n"


def _row(row: Row, folder: Path, out: Path, name: str, columns: Columns) -> dict[str, Any]:
    """One line: `{"input": "<image>Find x.", "images": ["images/train_000000_0.png"], "reference": "5"}`."""
    question, answer = (_text(row.values, key) for key in (columns.problem, columns.answer))
    options = media_list(row.values.get(columns.options)) if columns.options else []
    question += _choices(options)
    images = [picture_of(value, folder).image() for value in media_list(row.values.get(columns.images))]
    if not images:
        raise DataError(f"no image in {columns.images!r}; it has {', '.join(row.values)}")
    paths = [f"images/{name}_{i}.png" for i in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(out / path)
    return {"input": question, "images": paths, "reference": answer}


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None or not str(value).strip():
        raise DataError(f"no {key!r}; it has {', '.join(values)}")
    return str(value).strip()


def _choices(options: Sequence[Any]) -> str:
    """Choices below a question; nothing where they only repeat their letters (they stand in the image)."""
    letters = string.ascii_uppercase[: len(options)]
    if not options or all(str(o).strip("(). ") == a for o, a in zip(options, letters, strict=True)):
        return ""
    return "\n" + "\n".join(f"({a}) {o}" for a, o in zip(letters, options, strict=True))


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lightrft.tools.prepare_vision", description=__doc__, allow_abbrev=False
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", help="a file, a saved folder or a hub name")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--split", default="train", help="of a set that has several; names the file")
    for column, default in (
        ("problem", "problem"),
        ("answer", "answer"),
        ("images", "images"),
        ("options", ""),
    ):
        parser.add_argument(f"--{column}_key", default=default, metavar="COLUMN")
    args = parser.parse_args(argv)
    columns = Columns(args.problem_key, args.answer_key, args.images_key, args.options_key)
    try:
        count, problems = prepare(args.source, args.out, args.split, columns)
    except UserError as error:
        print(f"prepare_vision: error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"wrote {args.out / args.split}.jsonl: {count} rows, {len(problems)} left out")
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"  {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
