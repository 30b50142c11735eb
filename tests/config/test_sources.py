"""Data sources as the front end reads them: names, slices, counts."""

import json

import pytest

from lightrft.config.hub import read_hub
from lightrft.config.sources import Source, count_prompts, is_hub_name, split_sources


def test_sources_and_slices():
    assert split_sources("a.jsonl@[:10], org/name ,,b@[-5:]") == [
        Source("a.jsonl", None, 10),
        Source("org/name"),
        Source("b", -5, None),
    ]
    assert [str(s) for s in split_sources("a@[1:2],b@[-5:],c")] == ["a@[1:2]", "b@[-5:]", "c"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("org/name", True),
        ("Qwen/Qwen2.5-0.5B", True),
        ("name", False),
        ("/org/name", False),
        ("./name", False),
        ("data/train.jsonl", False),
        ("a/b/c", False),
    ],
)
def test_hub_names(text, is_one):
    assert is_hub_name(text) is is_one


def test_counting_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n\n{}\n  \n{}")
    (tmp_path / "b.json").write_text(json.dumps([{}] * 5))
    (tmp_path / "c.json").write_text("{}\n{}\n")
    (tmp_path / "d.json").write_text("[{]")
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    counts = {p.stem: count_prompts(str(p)) for p in tmp_path.iterdir()}
    assert counts == {"a": 3, "b": 5, "c": 2, "d": None, "e": None}
    assert count_prompts(f"{tmp_path}/a.jsonl,{tmp_path}/b.json@[1:3]") == 5
    assert count_prompts(f"{tmp_path}/a.jsonl@[-2:]") == 2
    assert count_prompts(f"{tmp_path}/a.jsonl,org/name") is None


def test_where_the_hub_keeps_things(tmp_path):
    hub = read_hub({"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "true"})
    assert (hub.offline, hub.cache) == (True, tmp_path)
    assert not read_hub({"HF_HUB_OFFLINE": "0"}).offline
    assert read_hub({"XDG_CACHE_HOME": "/x"}).cache.as_posix() == "/x/huggingface/hub"
    assert hub.model_folder("a/b") is None
    snapshots = tmp_path / "models--a--b" / "snapshots"
    for revision in ("1", "2"):
        (snapshots / revision).mkdir(parents=True)
    assert hub.model_folder("a/b") == snapshots / "2"
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1\n")
    assert hub.model_folder("a/b") == snapshots / "1"
