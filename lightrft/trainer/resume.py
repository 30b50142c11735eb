"""Finding the checkpoint that a run is to continue, and checking that it can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightrft.distributed.collectives import rank
from lightrft.errors import CheckpointError
from lightrft.trainer import checkpoint


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that this run continues."""

    folder: Path
    meta: dict[str, Any]
    shared: dict[str, Any]
    local: dict[str, Any]


def find_resumable(path: Path, flags: dict[str, Any], prompts: str) -> FoundCheckpoint | None:
    """The checkpoint at or below `path`, once it is known to fit these flags and prompts, or None.

    Every difference is named. `prompts` is the fingerprint of the prompt set.

    Raises:
        CheckpointError: it was made under flags or data with which its state cannot go on.
    """
    folder = checkpoint.find_checkpoint(path)
    if folder is None:
        _say(f"warning: --load_checkpoint found no checkpoint in {path}: starting at step 0")
        return None
    meta = checkpoint.read_meta(folder) or {}
    breaking, other = checkpoint.compare_flags(meta["flags"], flags)
    if meta["prompts"] != prompts:
        breaking.append(f"--prompt_data: other rows than those that {folder} was made with")
    if breaking:
        lines = "\n  ".join(breaking)
        raise CheckpointError(f"{folder} cannot continue under these flags:\n  {lines}")
    for line in other:
        _say(f"resuming with another {line}")
    _say(f"resuming from {folder}")
    return FoundCheckpoint(folder, meta, *checkpoint.load(folder))


def _say(text: str) -> None:
    if rank() == 0:
        print(text, flush=True)
