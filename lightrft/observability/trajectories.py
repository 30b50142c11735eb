"""A few rollouts of every so many steps, as text: the first thing to read when a reward looks odd."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightrft.types import RewardResult, Rollout


class TrajectoryWriter:
    """Writes `trajectories/step_000012.jsonl` in the log folder: one sampled response a line.

    Only rank 0 writes, of its own rollouts. The rows are the first `rows` of the step, so that the samples of
    one prompt stand together and can be compared.
    """

    def __init__(self, log_dir: Path | None, rank: int = 0, every: int = 10, rows: int = 16) -> None:
        self._folder = log_dir / "trajectories" if log_dir is not None and rank == 0 else None
        self._every = every
        self._rows = rows

    def write(self, step: int, rollouts: Sequence[Rollout], result: RewardResult) -> Path | None:
        """Write the sample of `step` (from 1) where it is due: the first step and every `every`-th."""
        if self._folder is None or self._every < 1 or (step != 1 and step % self._every):
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"step_{step:06d}.jsonl"
        rows = [_row(step, rollouts[i], result, i) for i in range(min(self._rows, len(rollouts)))]
        unfinished = path.with_suffix(".partial")
        unfinished.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
        os.replace(unfinished, path)  # a reader sees the whole file or none
        return path


def _row(step: int, rollout: Rollout, result: RewardResult, i: int) -> dict[str, Any]:
    return {
        "step": step,
        "source": rollout.prompt.source,
        "sample": rollout.sample_index,
        "prompt": rollout.prompt.text,
        "response": rollout.text,
        "references": rollout.prompt.references,
        "reward": result.rewards[i],
        "parts": {name: values[i] for name, values in result.parts.items()},
        "status": result.statuses[i] if result.statuses else None,
        "finish_reason": rollout.finish_reason,
        "num_tokens": len(rollout.token_ids),
        "policy_version": rollout.policy_version,
    }
