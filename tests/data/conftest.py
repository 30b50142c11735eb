"""A text processor, and a way to write rows."""

import json

import datasets
import pytest

from lightrft.data.processors import TextProcessor
from tests.data.characters import make_tokenizer


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    """`datasets` keeps a converted copy of each parquet file; not in the cache of whoever runs the tests."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="session")
def processor():
    return TextProcessor(make_tokenizer())


@pytest.fixture
def write(tmp_path):
    """`write("a.jsonl", row, b"raw line", …)`: a file in the test's folder; dicts become JSON lines."""

    def _write(name, *rows):
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / name
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    return _write
