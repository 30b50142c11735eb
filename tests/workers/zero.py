"""Worker: updates of a tiny policy on a fixed batch, once per case, all cases in one process.

A case: model, backend (local or deepspeed), stage, bf16, offload, micro, resume (go on in new objects from a
saved state half way). Writes losses, gradient norms and a digest of the final weights of each.
"""

import hashlib
import io
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch

from lightrft.algorithms.kl import FixedKLController
from lightrft.algorithms.losses import ppo
from lightrft.distributed.collectives import rank, world_size
from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed
from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.models.loading import ModelOptions, load_causal_lm
from lightrft.models.policy import Policy
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater
from lightrft.types import Experience

ROWS, LENGTH, PROMPT = 8, 10, 3


def global_batch() -> Experience:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([10, 5, 8, 4, 10, 7, 6, 9])
    positions = torch.arange(LENGTH)
    attention = (positions < lengths[:, None]).long()
    response = ((positions >= PROMPT) & (positions < lengths[:, None])).float()
    return Experience(
        input_ids=torch.randint(5, 50, (ROWS, LENGTH), generator=generator),
        attention_mask=attention,
        response_mask=response,
        group_ids=torch.arange(ROWS) // 2,
        rewards=torch.zeros(ROWS),
        policy_version=torch.zeros(ROWS, dtype=torch.long),
        old_logprobs=-3.0 * response,
        advantages=torch.randn(ROWS, 1, generator=generator) * response,
    )


def build(settings: dict) -> PolicyUpdater:
    if not torch.distributed.is_initialized():
        init_distributed(timedelta(seconds=60))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    options = DeepSpeedOptions(settings["stage"], settings["bf16"], settings["offload"], settings["micro"])
    strategy = (
        DeepSpeedStrategy(device, options) if settings["backend"] == "deepspeed" else LocalStrategy(device)
    )
    policy = Policy(load_causal_lm(ModelOptions(settings["model"], dtype=strategy.dtype)))
    trainable = strategy.prepare_trainable(policy, OptimizerOptions(weight_decay=0.01, max_norm=0.5))
    optimizer = Optimizer("policy", trainable, OptimizeOptions(1e-2, 1, 4), device)
    cut = BatchOptions(ROWS // 2 // world_size(), settings["micro"], 1)
    return PolicyUpdater(optimizer, ppo.compute, FixedKLController(0.0), cut, PolicyOptions())


def digest(updater: PolicyUpdater) -> str:
    sha = hashlib.sha256()
    for name, parameter in updater.optimizer.model.full_parameters():
        sha.update(name.encode())
        sha.update(parameter.float().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def train(settings: dict) -> dict:
    updater = build(settings)
    batch = global_batch()
    # pairs of rows are "prompts", shared out strided as the trainer does
    rows = [r for p in range(ROWS // 2)[rank() :: world_size()] for r in (2 * p, 2 * p + 1)]
    record: dict = {"losses": [], "norms": []}
    for step in range(2):
        if step == 1 and settings["resume"]:
            buffer = io.BytesIO()
            torch.save(updater.optimizer.model.state_dict(), buffer)
            buffer.seek(0)
            counters = updater.optimizer.counters
            updater = build(settings)
            updater.optimizer.model.load_state_dict(torch.load(buffer, weights_only=True))
            updater.optimizer.counters = counters
        metrics = updater.update(batch.select(rows)).reduce()
        record["losses"].append(metrics["policy/loss"])
        record["norms"].append(metrics["policy/grad_norm"])
    record["digest"] = digest(updater)
    record["weights"] = [float(p.double().norm()) for _, p in updater.optimizer.model.full_parameters()]
    return record


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    records = [train(case) for case in settings["cases"]]
    if rank() == 0:
        out.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
    # A rank that is gone while another still leaves makes gloo abort the latter.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
