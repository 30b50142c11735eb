"""`--prompt_data` and `--eval_data`: paths or hub names, separated by commas, each with an optional slice."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

_SLICE = re.compile(r"@\[(-?\d*):(-?\d*)\]$")
DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
_NO_HUB_NAME = (*DATA_SUFFIXES, ".py", ".csv", ".tsv", ".txt", ".gguf")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_CONFIGURATION = re.compile(r":[\w.-]+$")  # of a data set that has several: openai/gsm8k:main
# Beyond this size rows are counted only when they are loaded.
COUNT_LIMIT_BYTES = 1 << 30
JSON_LIMIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Source:
    """One source: `train.jsonl@[:100]` is `Source("train.jsonl", None, 100)`."""

    name: str
    start: int | None = None
    stop: int | None = None

    @property
    def path(self) -> Path:
        return Path(self.name).expanduser()

    @property
    def is_local(self) -> bool:
        """True for what exists here and for what can only be meant as a path."""
        return self.path.exists() or not is_hub_name(self.repository)

    @property
    def repository(self) -> str:
        """The hub name without its configuration: `openai/gsm8k:main` -> `openai/gsm8k`."""
        return _HUB_CONFIGURATION.sub("", self.name)

    def __str__(self) -> str:
        if self.start is None and self.stop is None:
            return self.name
        start, stop = ("" if bound is None else bound for bound in (self.start, self.stop))
        return f"{self.name}@[{start}:{stop}]"


def is_hub_name(text: str) -> bool:
    """True for `org/name`, and not for what starts or ends like a path."""
    return (
        bool(_HUB_NAME.fullmatch(text)) and not text.startswith(".") and Path(text).suffix not in _NO_HUB_NAME
    )


def split_sources(text: str) -> list[Source]:
    """`"a.jsonl@[:10], org/name"` -> two sources, in order; empty entries are left out."""
    sources = []
    for word in (part.strip() for part in text.split(",")):
        match = _SLICE.search(word)
        if match:
            start, stop = (int(bound) if bound else None for bound in match.groups())
            sources.append(Source(word[: match.start()], start, stop))
        elif word:
            sources.append(Source(word))
    return sources


def absolute(source: Source) -> Source:
    """The same source with the full path of what exists here."""
    return replace(source, name=str(source.path.resolve())) if source.path.exists() else source


def count_prompts(text: str) -> int | None:
    """Rows of all sources together; None where one of them cannot be counted here."""
    counts = [count_rows(source) for source in split_sources(text)]
    return None if None in counts else sum(count for count in counts if count is not None)


@functools.cache
def count_rows(source: Source) -> int | None:
    """Rows of a .jsonl or small .json file, its slice applied; None where counting would mean loading."""
    path = source.path
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        if path.suffix == ".jsonl" and size <= COUNT_LIMIT_BYTES:
            with path.open("rb") as file:
                total = sum(not line.isspace() for line in file)
        elif path.suffix == ".json" and size <= JSON_LIMIT_BYTES:
            total = _count_json(path.read_bytes())
        else:
            return None
    except (OSError, ValueError):  # unreadable: the file rules and the loader say so
        return None
    return len(range(total)[source.start : source.stop])


def _count_json(raw: bytes) -> int:
    """Entries of an array; lines where the file is JSON lines under another name, as many are."""
    text = raw.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] != b"[":
        return sum(not line.isspace() for line in text.splitlines())
    return len(json.loads(text))
