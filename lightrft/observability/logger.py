"""Where the metrics of a run go: `metrics.jsonl`, TensorBoard, Weights & Biases. Rank 0 only.

The only module that imports `tensorboard` and `wandb`, and only where they are asked for.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightrft.errors import ConfigError

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class WandbOptions:
    """Where a W&B run is filed. The key comes from `WANDB_API_KEY` or `wandb login`, never from a flag."""

    project: str
    entity: str | None = None
    run_name: str | None = None
    config: dict[str, Any] = field(default_factory=dict)


class RunLogger:
    """Writes the metrics of each step to every sink.

    `resumed_step` is the step that the loaded checkpoint was written at: what an earlier run logged after it
    is dropped, so that no step appears twice. 0 starts the files anew.

    Raises:
        ConfigError: a folder cannot be written; W&B is not installed, or has neither a key nor offline mode.
    """

    def __init__(
        self,
        log_dir: Path | None,
        *,
        tensorboard_dir: Path | None = None,
        wandb: WandbOptions | None = None,
        rank: int = 0,
        resumed_step: int = 0,
    ) -> None:
        self._lines: MetricsFile | None = None
        self._tensorboard: Any = None
        self._wandb: Any = None
        if rank != 0:
            return
        if log_dir is not None:
            _make_folder(log_dir, "--log_dir")
            self._lines = MetricsFile(log_dir / METRICS_FILE, resumed_step)
        if tensorboard_dir is not None:
            self._tensorboard = _open_tensorboard(tensorboard_dir, resumed_step)
        if wandb is not None:
            self._wandb = _open_wandb(wandb, log_dir, resumed_step)

    def log(self, step: int, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Record `metrics` of `step`, each name after `prefix`. Steps must not go backwards.

        Several calls for one step (training, then evaluation) make one record.
        """
        named = {prefix + name: float(value) for name, value in metrics.items()}
        if self._lines is not None:
            self._lines.write(step, named)
        if self._tensorboard is not None:
            for name, value in named.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log(named, step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Record a text of `step` where texts can be shown: TensorBoard and W&B."""
        if self._tensorboard is not None:
            self._tensorboard.add_text(name, text, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log({name: text}, step=step)

    def close(self) -> None:
        """Finish every sink; may be called twice."""
        lines, tensorboard, wandb = self._lines, self._tensorboard, self._wandb
        self._lines = self._tensorboard = self._wandb = None
        if lines is not None:
            lines.close()
        if tensorboard is not None:
            tensorboard.close()
        if wandb is not None:
            wandb.finish()


class MetricsFile:
    """A file of JSON objects, one for each step, in ascending order of `step`. What is no number is `null`.

    A new run does not write over the file of an earlier one: that is moved to `metrics.1.jsonl` and so on.
    """

    def __init__(self, path: Path, resumed_step: int) -> None:
        kept = _lines_up_to(path, resumed_step) if resumed_step > 0 else []
        if resumed_step > 0:
            _replace(path, b"".join(kept))
        elif path.exists() and path.stat().st_size:
            os.replace(path, _free_name(path))
        path.touch()
        self._file = path.open("rb+")
        self._last: dict[str, Any] = json.loads(kept[-1]) if kept else {"step": -1}
        self._last_start = sum(map(len, kept[:-1]))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of `step`; if that is the last one already, merge into it."""
        if step < self._last["step"]:
            raise ValueError(f"step {step} is logged after step {self._last['step']}")
        same = step == self._last["step"]
        start = self._last_start if same else self._file.seek(0, os.SEEK_END)
        record = self._last if same else {"step": step}
        record |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.seek(start)
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.truncate()
        self._file.flush()
        self._last, self._last_start = record, start

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines_up_to(path: Path, step: int) -> list[bytes]:
    """The whole lines of an earlier run up to `step`. A line torn by a crash ends the file."""
    kept: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            recorded = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            break
        if recorded > step or not line.endswith(b"\n"):
            break
        kept.append(line)
    return kept


def _replace(path: Path, content: bytes) -> None:
    """Write so that a crash leaves the old file or the new one."""
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    return name


def _make_folder(folder: Path, flag: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{flag} {folder}: is not writable by this user")


def _open_tensorboard(folder: Path, resumed_step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    _make_folder(folder, "--use_tensorboard")
    # The viewer hides what an earlier run wrote from this step on.
    return SummaryWriter(str(folder), purge_step=resumed_step + 1 if resumed_step else None)


def _open_wandb(options: WandbOptions, log_dir: Path | None, resumed_step: int) -> Any:
    flag = f"--use_wandb {options.project}"
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(f"{flag}: wandb is not installed; pip install 'lightrft[wandb]'") from error
    if not _wandb_can_start():  # it would ask at the terminal, or fail after the models are loaded
        raise ConfigError(
            f"{flag}: there is no key; export WANDB_API_KEY, or run `wandb login` once, or export "
            "WANDB_MODE=offline to keep the run on this machine"
        )
    try:
        return wandb.init(
            project=options.project,
            entity=options.entity,
            name=options.run_name,
            config=options.config,
            dir=str(log_dir) if log_dir is not None else None,
            id=_wandb_id(log_dir, resumed_step),
            resume="allow",
        )
    except wandb.errors.Error as error:
        raise ConfigError(f"{flag}: the run cannot be started: {error}") from error


def _wandb_can_start() -> bool:
    if os.environ.get("WANDB_MODE", "online") != "online" or os.environ.get("WANDB_API_KEY"):
        return True
    return Path(os.environ.get("NETRC", Path.home() / ".netrc")).exists()  # what `wandb login` writes


def _wandb_id(log_dir: Path | None, resumed_step: int) -> str:
    """The id of the W&B run: a resumed run goes on in the one that its log folder remembers."""
    fresh = uuid.uuid4().hex[:12]
    if log_dir is None:
        return fresh
    path = log_dir / "wandb_id"
    if resumed_step == 0 or not path.exists():
        path.write_text(fresh, encoding="utf-8")
    return path.read_text(encoding="utf-8")
