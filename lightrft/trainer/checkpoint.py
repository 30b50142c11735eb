"""Checkpoints that are whole or not there: written beside, synced, renamed; then the oldest are pruned.

    <save_path>/step_000040/
        lightrft.json       what this is: format, run, step, flags, versions, size
        trainer.json        sampler, counters, KL controller: the same on all ranks
        rank_00000.pt       master weights, optimizer state and RNG of one rank: tensors and numbers only
        hf/                 with --save_hf_ckpt: a plain Hugging Face folder

Nothing is unpickled that could run code: `.pt` files load with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import pickle  # for the name of its error: nothing is unpickled here
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightrft.distributed.collectives import barrier, rank, world_size
from lightrft.errors import CheckpointError

FORMAT = 1
META = "lightrft.json"
GIGABYTE = 10**9


@dataclass(frozen=True)
class CheckpointOptions:
    """`--save_path`, `--max_ckpt_num`, `--max_ckpt_mem`, and the name of this run."""

    save_path: Path
    run_id: str
    max_num: int = 3
    max_gigabytes: float = 1000


def write_json(path: Path, value: Any) -> None:
    """Write and sync; the caller's rename makes it visible."""
    with path.open("w") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


def replace_folder(temporary: Path, final: Path) -> None:
    """Put `temporary` in the place of `final`, by renames alone: whichever has the name is whole."""
    old = final.with_name(f".old_{final.name}")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    _sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rng_state() -> dict[str, Any]:
    """The state of every global generator of this process, in types that load without code."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    python = state["python"]
    random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


class CheckpointStore:
    """The checkpoints of one run below `save_path`. All methods but `latest` are collective."""

    def __init__(self, options: CheckpointOptions) -> None:
        self.options = options

    def save(
        self,
        meta: dict[str, Any],
        shared: dict[str, Any],
        local: dict[str, Any],
        export: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write `step_<meta["step"]>`: `shared` once, `local` of every rank, `export(folder)` for `hf/`."""
        final = self.options.save_path / f"step_{meta['step']:06d}"
        temporary = final.with_name(f".tmp_{self.options.run_id}_{final.name}")
        if rank() == 0:
            self._remove_leftovers()
            temporary.mkdir(parents=True)
        barrier()
        with (temporary / f"rank_{rank():05d}.pt").open("wb") as file:
            torch.save(local, file)
            file.flush()
            os.fsync(file.fileno())
        if export is not None:
            export(temporary / "hf")
        barrier()
        if rank() == 0:
            write_json(temporary / "trainer.json", shared)
            size = sum(f.stat().st_size for f in temporary.rglob("*") if f.is_file())
            own = {"format": FORMAT, "run_id": self.options.run_id, "bytes": size, "world_size": world_size()}
            write_json(temporary / META, meta | own)
            replace_folder(temporary, final)
            self._prune(final)
        barrier()
        return final

    def _remove_leftovers(self) -> None:
        """Half-written folders of this run, from a kill in the middle of a save."""
        for folder in self.options.save_path.glob(f".tmp_{self.options.run_id}_*"):
            shutil.rmtree(folder)

    def _own(self) -> list[tuple[int, Path, int]]:
        """(step, folder, bytes) of whole checkpoints that this run wrote, oldest first."""
        found = []
        for folder in self.options.save_path.glob("step_*"):
            meta = read_meta(folder)
            if meta is not None and meta["run_id"] == self.options.run_id:
                found.append((int(meta["step"]), folder, int(meta["bytes"])))
        return sorted(found)

    def _prune(self, newest: Path) -> None:
        """Delete the oldest of this run's own checkpoints beyond the limits; the newest always stays."""
        kept = self._own()
        limit = self.options.max_gigabytes * GIGABYTE
        while len(kept) > 1 and (len(kept) > self.options.max_num or sum(b for *_, b in kept) > limit):
            _, folder, _ = kept.pop(0)
            if folder != newest:
                shutil.rmtree(folder)


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The `lightrft.json` of a checkpoint, or None where there is no readable one."""
    try:
        meta = json.loads((folder / META).read_text())
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def find_checkpoint(path: Path) -> Path | None:
    """`path` itself if it is a checkpoint, else the latest `step_*` below it, else None."""
    if read_meta(path) is not None:
        return path
    found = [(int(m["step"]), f) for f in path.glob("step_*") if (m := read_meta(f)) is not None]
    return max(found)[1] if found else None


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(shared, this rank's local) of a checkpoint.

    Raises:
        CheckpointError: a file is missing or damaged, or another number of ranks wrote it.
    """
    meta = read_meta(folder)
    if meta is None:
        raise CheckpointError(f"{folder} is not a LightRFT checkpoint (format {FORMAT})")
    if meta["world_size"] != world_size():
        raise CheckpointError(
            f"{folder} was written by {meta['world_size']} ranks and this run has {world_size()}: "
            "start it with the same number of GPUs"
        )
    try:
        shared = json.loads((folder / "trainer.json").read_text())
        local = torch.load(folder / f"rank_{rank():05d}.pt", map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder} is damaged: {reason}") from error
    return shared, local


# A checkpoint made under other values of these cannot continue: state and data would not fit each other.
BREAKING_FLAGS = (
    "pretrain",
    "zero_stage",
    "bf16",
    "adam_offload",
    "train_batch_size",
    "rollout_batch_size",
    "n_samples_per_prompt",
    "seed",
    "advantage_estimator",
)


def compare_flags(saved: dict[str, Any], current: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(differences that break the state, other differences) as lines `--flag: old -> new`."""
    ignored = {"load_checkpoint", "ckpt_path", "local_rank", "dry_run", "print_config"}
    changed = [name for name in sorted(set(saved) & set(current) - ignored) if saved[name] != current[name]]
    lines = {name: f"--{name}: {saved[name]} -> {current[name]}" for name in changed}
    breaking = [lines[n] for n in changed if n in BREAKING_FLAGS]
    return breaking, [lines[n] for n in changed if n not in BREAKING_FLAGS]
