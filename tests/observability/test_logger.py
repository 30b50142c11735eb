"""The sinks of a run's metrics, read back as their readers do."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lightrft.errors import ConfigError
from lightrft.observability.logger import RunLogger, WandbOptions

KEY = "f" * 40


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_step_is_one_object_and_is_there_at_once(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.log(1, {"reward": 0.5, "kl": math.nan, "gap": math.inf}, prefix="rollout/")
    # Read while the logger is open: a run that is killed now loses nothing.
    assert rows(tmp_path) == [{"step": 1, "rollout/reward": 0.5, "rollout/kl": None, "rollout/gap": None}]
    logger.log(2, {"reward": 1})
    logger.close()
    assert rows(tmp_path)[1] == {"step": 2, "reward": 1.0}


def test_two_calls_for_a_step_are_merged(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.log(0, {"eval/reward": 0.12345678901234567})
    logger.log(1, {"rollout/reward": 0.12345678901234567, "twice": 1234567.0})
    logger.log(1, {"eval/reward": 0.75, "twice": 1.0})
    logger.log(2, {"rollout/reward": 0.6})
    assert rows(tmp_path) == [
        {"step": 0, "eval/reward": 0.12345678901234567},
        {"step": 1, "rollout/reward": 0.12345678901234567, "twice": 1.0, "eval/reward": 0.75},
        {"step": 2, "rollout/reward": 0.6},
    ]


def test_a_merged_line_that_got_shorter_leaves_no_tail(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.log(1, {"a": 0.12345678901234567})
    logger.log(1, {"a": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": 1.0}\n'


def test_steps_do_not_go_backwards(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.log(2, {"a": 1.0})
    with pytest.raises(ValueError, match="step 1 is logged after step 2"):
        logger.log(1, {"a": 1.0})


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    first = RunLogger(tmp_path)
    for step in range(5):
        first.log(step, {"reward": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')  # the run was killed in the middle of a line
    resumed = RunLogger(tmp_path, resumed_step=2)
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2]
    resumed.log(2, {"eval/reward": 9.0})  # evaluated again: merged, not a second line
    resumed.log(3, {"reward": 30.0})
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    assert rows(tmp_path)[2:] == [
        {"step": 2, "reward": 2.0, "eval/reward": 9.0},
        {"step": 3, "reward": 30.0},
    ]


def test_a_torn_line_is_dropped_although_its_step_would_stay(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    RunLogger(tmp_path, resumed_step=7).log(8, {"a": 8.0})
    assert [row["step"] for row in rows(tmp_path)] == [1, 8]


def test_resuming_where_nothing_was_logged_starts_a_file(tmp_path: Path) -> None:
    RunLogger(tmp_path / "new", resumed_step=3).log(4, {"a": 1.0})
    assert rows(tmp_path / "new") == [{"step": 4, "a": 1.0}]


def test_a_new_run_keeps_the_file_of_the_one_before(tmp_path: Path) -> None:
    for run in range(3):
        logger = RunLogger(tmp_path)
        logger.log(0, {"run": float(run)})
        logger.close()
    kept = {p.name: json.loads(p.read_text())["run"] for p in tmp_path.glob("metrics*.jsonl")}
    assert kept == {"metrics.1.jsonl": 0.0, "metrics.2.jsonl": 1.0, "metrics.jsonl": 2.0}


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    logger = RunLogger(
        tmp_path / "logs", tensorboard_dir=tmp_path / "tb", wandb=WandbOptions("project"), rank=1
    )
    logger.log(1, {"a": 1.0})
    logger.text(1, "sample", "text")
    logger.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named_with_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--log_dir .*file/logs: cannot be made: Not a directory"):
        RunLogger(tmp_path / "file" / "logs")
    with pytest.raises(ConfigError, match="--use_tensorboard"):
        RunLogger(None, tensorboard_dir=tmp_path / "file" / "tb")


def test_tensorboard_files_hold_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = RunLogger(None, tensorboard_dir=tmp_path)
    for step in (1, 2, 3):
        logger.log(step, {"rollout/reward": step / 4})
    logger.text(3, "rollout/sample", "1+1=2")
    logger.close()
    resumed = RunLogger(None, tensorboard_dir=tmp_path, resumed_step=2)
    resumed.log(3, {"rollout/reward": 0.5})
    resumed.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("rollout/reward")] == [(1, 0.25), (2, 0.5), (3, 0.5)]
    assert "rollout/sample/text_summary" in events.Tags()["tensors"]


@pytest.fixture
def no_wandb_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_without_a_key_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--use_wandb sums: there is no key; export WANDB_API_KEY"):
        RunLogger(tmp_path, wandb=WandbOptions("sums"))


def test_wandb_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb is not installed; pip install 'lightrft\[wandb\]'"):
        RunLogger(tmp_path, wandb=WandbOptions("sums"))


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_offline_keeps_the_run_and_never_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    options = WandbOptions("sums", run_name="one", config={"actor_learning_rate": 4e-4})
    logger = RunLogger(tmp_path, wandb=options)
    logger.log(1, {"rollout/reward": 0.25})
    logger.text(1, "rollout/sample", "1+1=2")
    logger.close()
    (run_file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # W&B's own process writes the file, in its own time
    while b"rollout/reward" not in run_file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"rollout/reward" in run_file.read_bytes()
    assert (tmp_path / "wandb_id").read_text() in run_file.name
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert KEY.encode() not in written
    assert KEY not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("no_wandb_key")
def test_a_resumed_run_goes_on_in_the_same_wandb_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    ids = []
    for resumed_step in (0, 4, 0):
        logger = RunLogger(tmp_path, wandb=WandbOptions("sums"), resumed_step=resumed_step)
        logger.log(resumed_step + 1, {"a": 1.0})
        logger.close()
        ids.append((tmp_path / "wandb_id").read_text())
    assert ids[0] == ids[1] != ids[2]
