"""Checkpoints: whole or absent, pruned only where they are ours, loaded without running code."""

import json

import pytest
import torch

from lightrft.errors import CheckpointError
from lightrft.trainer.checkpoint import (
    CheckpointOptions,
    CheckpointStore,
    compare_flags,
    find_checkpoint,
    load,
    restore_rng_state,
    rng_state,
)


def store(path, run_id="r1", **options):
    return CheckpointStore(CheckpointOptions(path, run_id, **options))


def save(s, step, size=1):
    local = {"weights": torch.arange(float(step * size)), "rng": rng_state()}
    return s.save({"step": step, "flags": {}}, {"step": step, "sampler": {"episode": 0}}, local)


def test_round_trip(tmp_path):
    folder = save(store(tmp_path), 3)
    shared, local = load(folder)
    assert shared["step"] == 3
    assert local["weights"].tolist() == [0.0, 1.0, 2.0]
    assert sorted(p.name for p in folder.iterdir()) == ["lightrft.json", "rank_00000.pt", "trainer.json"]


def test_random_numbers_continue(tmp_path):
    import random

    random.random()
    state = rng_state()
    first = torch.rand(3).tolist(), random.random()
    restore_rng_state(state)
    assert (torch.rand(3).tolist(), random.random()) == first
    torch.save(state, tmp_path / "rng.pt")
    restore_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert (torch.rand(3).tolist(), random.random()) == first


def test_the_oldest_go_first_and_the_newest_stays(tmp_path):
    s = store(tmp_path, max_num=2)
    for step in (1, 2, 10):
        save(s, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000002", "step_000010"]
    tight = store(tmp_path, max_num=9, max_gigabytes=1e-9)
    save(tight, 11)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000011"]


def test_what_others_wrote_is_never_deleted(tmp_path):
    (tmp_path / "step_000000").mkdir()
    (tmp_path / "step_000000" / "thesis.txt").write_text("mine")
    save(store(tmp_path, "someone_else"), 1)
    s = store(tmp_path, "r1", max_num=1)
    save(s, 2)
    save(s, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000000", "step_000001", "step_000003"]
    assert (tmp_path / "step_000000" / "thesis.txt").read_text() == "mine"


def test_a_half_written_folder_is_no_checkpoint_and_is_cleared_by_the_next_save(tmp_path):
    s = store(tmp_path)
    save(s, 1)
    torn = tmp_path / ".tmp_r1_step_000002"
    torn.mkdir()
    (torn / "rank_00000.pt").write_bytes(b"half")
    assert find_checkpoint(tmp_path).name == "step_000001"
    save(s, 2)
    assert not torn.exists()


def test_find(tmp_path):
    assert find_checkpoint(tmp_path / "none") is None
    assert find_checkpoint(tmp_path) is None
    folder = save(store(tmp_path), 9)
    save(store(tmp_path), 10)
    assert find_checkpoint(tmp_path).name == "step_000010"
    assert find_checkpoint(folder) == folder


def test_saving_a_step_again_replaces_it(tmp_path):
    s = store(tmp_path)
    save(s, 4)
    _, local = load(save(s, 4, size=2))
    assert len(local["weights"]) == 8


def test_another_number_of_ranks_is_refused(tmp_path):
    folder = save(store(tmp_path), 1)
    meta = json.loads((folder / "lightrft.json").read_text())
    (folder / "lightrft.json").write_text(json.dumps(meta | {"world_size": 8}))
    with pytest.raises(CheckpointError, match="written by 8 ranks and this run has 1"):
        load(folder)


def test_damage_is_named(tmp_path):
    folder = save(store(tmp_path), 1)
    (folder / "rank_00000.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="is damaged"):
        load(folder)


class Evil:
    def __reduce__(self):
        return (print, ("ran code",))


def test_a_checkpoint_cannot_run_code(tmp_path, capsys):
    folder = save(store(tmp_path), 1)
    torch.save({"weights": Evil()}, folder / "rank_00000.pt")
    with pytest.raises(CheckpointError, match="is damaged"):
        load(folder)
    assert "ran code" not in capsys.readouterr().out


def test_flags_that_break_the_state_are_told_from_the_others():
    saved = {"pretrain": "a", "seed": 1, "temperature": 1.0, "load_checkpoint": False}
    now = {"pretrain": "b", "seed": 1, "temperature": 0.7, "load_checkpoint": True}
    breaking, other = compare_flags(saved, now)
    assert breaking == ["--pretrain: a -> b"]
    assert other == ["--temperature: 1.0 -> 0.7"]
