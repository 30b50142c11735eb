"""What a run has changed: the first and the last evaluation in its metrics file.

    python -m lightrft.tools.before_after runs/quickstart/logs/metrics.jsonl --name quickstart --seconds 140

The last line is the evaluation that stands first in `--eval_temperature`; the others come before it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

METRIC = "pass_rate"


def first_and_last(path: Path) -> dict[str, tuple[float, float]]:
    """{evaluation: (first, last)} pass rates, in the order of the file: `eval`, `eval/t0`, ...

    Raises:
        ValueError: there are not two evaluations to compare.
    """
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        for key, value in json.loads(line).items():
            prefix, _, metric = key.rpartition("/")
            if metric == METRIC and prefix.startswith("eval"):
                found.setdefault(prefix, []).append(value)
    if not found or min(len(values) for values in found.values()) < 2:
        raise ValueError(
            f"{path} holds fewer than two evaluations: run with --eval_data and --eval_before_train"
        )
    return {prefix: (values[0], values[-1]) for prefix, values in found.items()}


def describe(prefix: str) -> str:
    """`eval/t0` -> `greedy`, `eval/t0.7` -> `temperature 0.7`, `eval` -> the empty string."""
    temperature = prefix.rpartition("/t")[2] if "/t" in prefix else ""
    if not temperature:
        return ""
    return "greedy" if float(temperature) == 0 else f"temperature {temperature}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a run")
    parser.add_argument("--name", default="run")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long it took, for the line")
    args = parser.parse_args()
    try:
        rates = first_and_last(args.metrics)
    except (OSError, ValueError) as error:
        print(f"before_after: error: {error}", file=sys.stderr)
        return 2
    for prefix in sorted(rates, key=len, reverse=True):
        before, after = rates[prefix]
        label = f"{args.name} ({describe(prefix)})" if describe(prefix) else args.name
        print(f"{label}: pass rate {before:.3f} -> {after:.3f} in {args.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
