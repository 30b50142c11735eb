"""Worker: reward models as the trainer places them, on ranks with different numbers of texts.

A case: model, stage, bf16, and the texts of each rank. Rank 0 writes, for each, every rank's scores three
times over (DeepSpeed learns the order of modules and then goes by it), the parameters that rank 0 holds
between calls, and what loading said where it failed.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch

from lightrft.distributed.collectives import gather_objects, rank
from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed
from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions
from lightrft.models.reward_model import ModuleScorer, load_reward_model


def score(case: dict, device: torch.device) -> dict:
    strategy = DeepSpeedStrategy(device, DeepSpeedOptions(case["stage"], case["bf16"], persistent_numel=0))
    options = ModelOptions(case["model"], dtype=strategy.dtype, flag="--reward_pretrain")
    try:
        with strategy.loading():
            module = load_reward_model(options)
    except ModelError as error:
        return {"refused": str(error)}
    scorer = ModuleScorer(strategy.prepare_parked(module), case["micro"], device)
    runs = [gather_objects(scorer(case["texts"][rank()])) for _ in range(3)]
    held = sum(p.numel() for p in module.parameters())
    return {"runs": runs, "held": held}


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    device = init_distributed(timedelta(seconds=60))
    records = [score(case, device) for case in settings["cases"]]
    if rank() == 0:
        out.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
    # A rank that is gone while another still leaves makes gloo abort the latter.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
