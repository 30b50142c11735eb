"""Worker: the gradient of one batch of six samples, for every loss and averaging, cut into micro-batches.

Writes {case: {micro-batch size: path of the summed gradients}}; what the ranks hold adds up to the batch.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch

from lightrft import registry
from lightrft.algorithms.components import load_loss
from lightrft.algorithms.kl import FixedKLController
from lightrft.distributed.collectives import rank, reduce_sum, world_size
from lightrft.distributed.deepspeed import init_distributed
from lightrft.distributed.local import LocalModel
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.models.loading import ModelOptions, load_causal_lm
from lightrft.models.policy import Policy
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater
from lightrft.types import Experience

ROWS = 6
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
CPU = torch.device("cpu")


class Recorder(LocalModel):
    """Keeps the gradients of its last step, summed over ranks."""

    def step(self, learning_rate):
        self.gradients = {n: reduce_sum(p.grad) for n, p in self.module.named_parameters()}
        return super().step(learning_rate)


def batch(policy: Policy) -> Experience:
    generator = torch.Generator().manual_seed(3)
    lengths = [(3, 5), (4, 1), (2, 9), (5, 3), (3, 2), (1, 6)]  # prompt, response
    total = max(p + r for p, r in lengths)
    ids = torch.randint(5, 50, (ROWS, total), generator=generator)
    attention, response = torch.zeros(ROWS, total, dtype=torch.long), torch.zeros(ROWS, total)
    for i, (p, r) in enumerate(lengths):
        attention[i, : p + r] = 1
        response[i, p : p + r] = 1
    with torch.no_grad():
        old = policy(ids, attention, response).logprobs
    noise = 0.1 * torch.randn(ROWS, total, generator=generator)
    return Experience(
        input_ids=ids,
        attention_mask=attention,
        response_mask=response,
        group_ids=torch.arange(ROWS) // 2,
        rewards=torch.zeros(ROWS),
        policy_version=torch.zeros(ROWS, dtype=torch.long),
        old_logprobs=old + noise * response,
        ref_logprobs=old - 0.3 * response,
        advantages=torch.randn(ROWS, 1, generator=generator) * response,
        loss_weights=torch.rand(ROWS, total, generator=generator),
    )


def gradients(policy: Policy, experience: Experience, loss: str, mode: str, micro: int) -> dict:
    model = Recorder(policy, OptimizerOptions(max_norm=0.0))
    updater = PolicyUpdater(
        Optimizer("policy", model, OptimizeOptions(0.0, 0, 1), CPU),
        load_loss(loss),
        FixedKLController(0.1),
        BatchOptions(ROWS // world_size(), micro, 1, mode, 9),
        PolicyOptions(use_kl_loss=True, entropy_coef=0.01),
    )
    updater.update(experience)
    return model.gradients


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    init_distributed(timedelta(seconds=60))
    policy = Policy(load_causal_lm(ModelOptions(settings["model"])))
    local = batch(policy).select(range(ROWS)[rank() :: world_size()])
    found: dict = {}
    for loss in registry.names("algorithms/losses"):
        for mode in MODES:
            for micro in settings["micro"]:
                path = f"{out}.{world_size()}.{loss}.{mode}.{micro}.pt"
                grads = gradients(policy, local, loss, mode, micro)
                if rank() == 0:
                    torch.save(grads, path)
                found.setdefault(f"{loss} {mode}", {})[micro] = path
    if rank() == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # A rank that is gone while another still leaves makes gloo abort the latter.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
