"""The sampled rollouts that a run leaves for reading."""

from __future__ import annotations

import json
from pathlib import Path

from lightrft.observability.trajectories import TrajectoryWriter
from lightrft.types import Prompt, RewardResult, RewardStatus, Rollout


def rollouts(count: int) -> tuple[list[Rollout], RewardResult]:
    prompt = Prompt(0, [7, 8], "3×4=", references=["12"], source="train.jsonl:4")
    made = [Rollout(prompt, i, [5, 2], f"é{i}", "stop", policy_version=6) for i in range(count)]
    scores: list[float | None] = [None, *[1.0] * (count - 1)]
    statuses: list[RewardStatus] = ["ok" if i else "timeout" for i in range(count)]
    return made, RewardResult(scores, {"answer": scores}, statuses)


def test_a_row_says_what_was_asked_answered_and_scored(tmp_path: Path) -> None:
    path = TrajectoryWriter(tmp_path).write(1, *rollouts(2))
    assert path == tmp_path / "trajectories" / "step_000001.jsonl"
    text = path.read_text("utf-8")
    assert "3×4=" in text  # readable as it is
    first, second = map(json.loads, text.splitlines())
    assert first["reward"] is None
    assert first["status"] == "timeout"
    assert second == {
        "step": 1,
        "source": "train.jsonl:4",
        "sample": 1,
        "prompt": "3×4=",
        "response": "é1",
        "references": ["12"],
        "reward": 1.0,
        "parts": {"answer": 1.0},
        "status": "ok",
        "finish_reason": "stop",
        "num_tokens": 2,
        "policy_version": 6,
    }


def test_only_every_so_many_steps_and_only_some_rows(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, every=5, rows=3)
    for step in range(1, 12):
        writer.write(step, *rollouts(8))
    files = sorted((tmp_path / "trajectories").iterdir())
    assert [f.name for f in files] == ["step_000001.jsonl", "step_000005.jsonl", "step_000010.jsonl"]
    assert len(files[0].read_text("utf-8").splitlines()) == 3


def test_other_ranks_and_runs_without_a_folder_write_nothing(tmp_path: Path) -> None:
    assert TrajectoryWriter(tmp_path, rank=1).write(1, *rollouts(2)) is None
    assert TrajectoryWriter(None).write(1, *rollouts(2)) is None
    assert TrajectoryWriter(tmp_path, every=0).write(1, *rollouts(2)) is None
    assert list(tmp_path.iterdir()) == []
