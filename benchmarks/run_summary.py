"""Boil a run's metrics file down to one JSON: medians over its steps, the machine, versions, commit.

python benchmarks/run_summary.py runs/gsm8k/logs/metrics.jsonl --out benchmarks/results/gsm8k_h200.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "deepspeed", "triton", "vllm", "sglang")
SKIP_STEPS = 1  # the first step compiles and allocates
GROWTH_FROM = 3  # the step from which memory in use should stay level; needs --debug
MIB = 1 << 20


def machine() -> dict[str, Any]:
    """The device, the versions and the commit that the figures belong to."""
    cuda = torch.cuda.is_available()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": commit.stdout.strip(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:
        return None


def summarise(path: Path) -> dict[str, Any]:
    """Median, first and last of every metric over the training steps; every sentinel's worst verdict."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [r for r in records if "policy/loss" in r]
    names = sorted({k for r in steps for k in r} - {"step"})
    out: dict[str, Any] = {"steps": len(steps), "metrics": {}, "sentinels": {}}
    for name in names:
        values = [r[name] for r in steps if r.get(name) is not None]
        if name.startswith("sentinel/"):
            out["sentinels"][name.removeprefix("sentinel/")] = ("ok", "warn", "fail")[int(max(values))]
        else:
            median = statistics.median(values[SKIP_STEPS:] or values)
            out["metrics"][name] = {"median": median, "first": values[0], "last": values[-1]}
    out["evaluations"] = [
        {k: v for k, v in r.items() if k == "step" or k.startswith("eval")}
        for r in records
        if "eval/pass_rate" in r
    ]
    out["memory_in_use_mib"] = [round(in_use(r) / MIB) for r in steps if "memory/cuda/used" in r]
    return out


def in_use(record: dict[str, Any]) -> float:
    """Bytes of GPU memory at the end of a step, without what torch only keeps for later."""
    kept = record["memory/cuda/reserved"] - record["memory/cuda/allocated"]
    return float(record["memory/cuda/used"] - kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", default="", help="one line that says what ran")
    parser.add_argument("--commit", default="", help="where the machine has no git history")
    args = parser.parse_args()
    result = {"what": args.what} | machine() | summarise(args.metrics)
    if args.commit:
        result["commit"] = args.commit
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v["median"] for k, v in result["metrics"].items()}, indent=1))
    print(f"{result['steps']} steps; worst verdicts: {result['sentinels']}")
    if len(used := result["memory_in_use_mib"]) > GROWTH_FROM:
        print(f"memory in use: step {GROWTH_FROM} {used[GROWTH_FROM - 1]} MiB, last {used[-1]} MiB")


if __name__ == "__main__":
    main()
