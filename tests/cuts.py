"""No cut of a batch shows in its gradient: micro-batches of 6, 5 + 1, 3, 2 and 1, on 1 and on 2 ranks.

    python -m tests.cuts

compares, for every loss and `--loss_agg_mode`, the gradient of each cut with that of the whole batch and
prints the largest relative difference of a parameter's gradient; exit code 1 above 1e-5.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from lightrft.tools.make_tiny import make_random_llama
from tests.ranks import WORLDS, run_worker

LIMIT = 1e-5
CUTS = {1: [6, 5, 3, 2, 1], 2: [3, 2, 1]}


def difference(got: dict[str, torch.Tensor], whole: dict[str, torch.Tensor]) -> float:
    """Largest |difference| over |gradient| of a parameter, by norm."""
    return max(float((got[n] - g).norm() / g.norm()) for n, g in whole.items())


def largest_differences(model: Path, folder: Path) -> dict[str, float]:
    """{loss and averaging: largest relative difference over all cuts}."""
    whole: dict[str, dict[str, torch.Tensor]] = {}
    worst: dict[str, float] = {}
    for world in WORLDS:
        found = run_worker("cuts", world, folder / "cuts.json", model=str(model), micro=CUTS[world])
        for case, by_micro in found.items():
            for path in by_micro.values():
                gradients = torch.load(path, weights_only=True)
                whole.setdefault(case, gradients)  # the first is one rank's whole batch
                worst[case] = max(worst.get(case, 0.0), difference(gradients, whole[case]))
    return worst


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        worst = largest_differences(make_random_llama(Path(temporary) / "model"), Path(temporary))
    for case, value in worst.items():
        print(f"{case:40} {value:.1e}")
    largest = max(worst.values())
    print(f"cuts: largest relative difference {largest:.1e} over {len(worst)} cases (limit {LIMIT:.0e})")
    return 0 if largest <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
