"""Worker: small jobs on a tiny model, once per case, all cases in one process.

A case: kind (a key of KINDS), model, backend (local or deepspeed), stage, bf16, offload, micro, persistent
(elements that ZeRO-3 leaves whole), and what its kind asks for. Rank 0 writes one record for each.
"""

import hashlib
import io
import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch

from lightrft.algorithms.kl import FixedKLController
from lightrft.algorithms.losses import ppo
from lightrft.distributed.collectives import gather_objects, rank, world_size
from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed
from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions, Strategy, TrainableModel, whole_shape
from lightrft.models.critic import load_critic
from lightrft.models.loading import ModelOptions, load_causal_lm
from lightrft.models.policy import Policy
from lightrft.trainer.optimize import OptimizeOptions, Optimizer
from lightrft.trainer.update import BatchOptions, PolicyOptions, PolicyUpdater
from lightrft.types import Experience

ROWS, LENGTH, PROMPT = 8, 10, 3
STEPS, RESUME_AT = 3, 2
ADAM = OptimizerOptions(weight_decay=0.1, max_norm=0.5)


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


def own_batch() -> Experience:
    """This rank's rows: pairs of rows are "prompts", shared out strided as the trainer does."""
    rows = [r for p in range(ROWS // 2)[rank() :: world_size()] for r in (2 * p, 2 * p + 1)]
    return global_batch().select(rows)


def in_global_order(own: torch.Tensor) -> list[list[float]]:
    """The rows `[B, T]` of all ranks as one process would have them, padded to LENGTH."""
    padded = torch.nn.functional.pad(own.detach().cpu(), (0, LENGTH - own.shape[1]))
    by_rank = torch.tensor(gather_objects(padded.tolist())).view(world_size(), -1, 2, LENGTH)
    return by_rank.transpose(0, 1).reshape(ROWS, LENGTH).tolist()


def the_device() -> torch.device:
    return torch.device("cuda", rank()) if torch.cuda.is_available() else torch.device("cpu")


def build_strategy(case: dict) -> Strategy:
    if case["backend"] == "local":
        return LocalStrategy(the_device())
    return DeepSpeedStrategy(
        the_device(),
        DeepSpeedOptions(case["stage"], case["bf16"], case["offload"], case["micro"], case["persistent"]),
    )


def load_policy(case: dict, strategy: Strategy) -> Policy:
    with strategy.loading():
        return Policy(load_causal_lm(ModelOptions(case["model"], dtype=strategy.dtype)))


def build(case: dict) -> PolicyUpdater:
    strategy = build_strategy(case)
    trainable = strategy.prepare_trainable(load_policy(case, strategy), ADAM)
    optimizer = Optimizer("policy", trainable, OptimizeOptions(1e-2, 1, 4), the_device())
    cut = BatchOptions(ROWS // 2 // world_size(), case["micro"], 1)
    return PolicyUpdater(optimizer, ppo.compute, FixedKLController(0.0), cut, PolicyOptions())


def digest(model: TrainableModel) -> str:
    sha = hashlib.sha256()
    for name, parameter in model.full_parameters():
        sha.update(name.encode())
        sha.update(parameter.float().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def norms(model: TrainableModel) -> dict[str, float]:
    return {name: float(p.double().norm()) for name, p in model.full_parameters()}


def resumed(case: dict, updater: PolicyUpdater) -> PolicyUpdater:
    """New objects that go on from what the old ones saved."""
    buffer = io.BytesIO()
    torch.save(updater.optimizer.model.state_dict(), buffer)
    buffer.seek(0)
    again = build(case)
    if case[
        "used_before_load"
    ]:  # a step leaves moments, and parameters that stay gathered: all must give way
        again.update(own_batch())
    again.optimizer.model.load_state_dict(torch.load(buffer, weights_only=True))
    again.optimizer.counters = updater.optimizer.counters
    return again


def train(case: dict) -> dict:
    """Updates on a fixed batch; `resume`: in new objects; `nan_at`: the step whose loss is NaN on rank 0."""
    updater, batch = build(case), own_batch()
    record: dict = {"losses": [], "norms": []}
    for step in range(STEPS):
        if step == RESUME_AT and case["resume"]:
            updater = resumed(case, updater)
        poisoned = step == case["nan_at"] and rank() == 0
        nan = batch.advantages * float("nan")
        metrics = updater.update(replace(batch, advantages=nan) if poisoned else batch).reduce()
        record["losses"].append(metrics.get("policy/loss"))
        record["norms"].append(metrics.get("policy/grad_norm"))
    model = updater.optimizer.model
    return record | {"digest": digest(model), "weights": norms(model)}


def nan_gradient(case: dict) -> dict:
    """A finite loss (the root of 0) whose gradient is not; then a step on a good one."""
    model, batch = build(case).optimizer.model, own_batch().to(the_device())
    before, results = digest(model), []
    for bad in (True, False):
        out = model(batch.input_ids, batch.attention_mask, batch.response_mask).logprobs.mean()
        model.backward((out - out.detach()).sqrt() if bad else out, last=True, finite=True)
        results.append(model.step(1e-3))
        if bad:
            unchanged = digest(model) == before
    return {"skipped": [r.skipped for r in results], "norms": [r.grad_norm for r in results]} | {
        "unchanged": unchanged,
        "moved": digest(model) != before,
    }


def buckets(case: dict) -> dict:
    """What `parameter_buckets` gives, and how much of the model is whole before, after and after a stop."""
    strategy = build_strategy(case)
    model = strategy.prepare_trainable(load_policy(case, strategy), ADAM)
    batch = own_batch().to(the_device())
    with torch.no_grad():
        model(batch.input_ids, batch.attention_mask, batch.response_mask)
    found, whole = [], []
    for bucket in model.parameter_buckets(case["max_bytes"]):
        found.append([(n, list(t.shape), t.numel() * t.element_size()) for n, t in bucket])
        whole.append(held(model))
    after = held(model)
    for _, parameter in model.full_parameters():
        assert parameter.numel()
        break
    for _ in model.parameter_buckets(1):
        break
    return {
        "buckets": found,
        "whole": whole,
        "after": after,
        "stopped": held(model),
        "weights": norms(model),
    } | {"buffers": {name: b.double().tolist() for name, b in model.module.named_buffers()}}


def held(model: TrainableModel) -> int:
    """Bytes of the parameters that this rank has whole."""
    return sum(p.numel() * p.element_size() for p in model.module.parameters())


def critic(case: dict) -> dict:
    """Values before and after a step towards 1, with a fresh head or the saved one."""
    strategy = build_strategy(case)
    with strategy.loading():
        module = load_critic(ModelOptions(case["model"], dtype=strategy.dtype), strategy.device)
    model = strategy.prepare_trainable(module, ADAM)
    batch = own_batch().to(the_device())
    values = []
    for _ in range(2):
        value = model(batch.input_ids, batch.attention_mask, batch.response_mask)
        values.append(in_global_order(value))
        model.backward(((value - 1) * batch.response_mask).square().sum() / 50, last=True, finite=True)
        model.step(1e-2)
    return {"values": values, "weights": norms(model)}


def frozen(case: dict) -> dict:
    """Log-probs of a model that is not trained, what of it is whole on a rank, and its groups for AdamW."""
    strategy = build_strategy(case)
    module = strategy.prepare_frozen(load_policy(case, strategy))
    batch = own_batch().to(the_device())
    with torch.no_grad():
        # ZeRO-3 records the order of modules in the first two, and goes by it from the third.
        runs = [module(batch.input_ids, batch.attention_mask, batch.response_mask).logprobs for _ in range(4)]
    return {
        "logprobs": in_global_order(runs[0]),
        "steady": all(torch.equal(runs[0], run) for run in runs),
        "held": sum(p.numel() for p in module.parameters()),
        "dimensions": sorted({len(whole_shape(p)) for p in module.parameters()}),
        "training": module.training,
        "buffers": {name: b.double().tolist() for name, b in module.named_buffers()},
    }


KINDS = {
    "train": train,
    "nan_gradient": nan_gradient,
    "buckets": buckets,
    "critic": critic,
    "frozen": frozen,
}


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    init_distributed(timedelta(seconds=60))
    records = [KINDS[case["kind"]](case) for case in settings["cases"]]
    if rank() == 0:
        out.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
    # A rank that is gone while another still leaves makes gloo abort the latter.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
