"""The start-up self-test: it passes on a right engine, and each fault is found at its step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightrft.distributed.local import LocalModel
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.errors import EngineError
from lightrft.rollout.self_test import run_self_test

LIMITS = (1e-4, 1e-2)
NAME = "model.embed_tokens.weight"


class Engine:
    """Holds the embedding that it was given, unless its fault forbids; its gap is how far that one is off."""

    def __init__(self, fault=""):
        self.fault = fault
        self.policy_version = 3
        self.embedding = None
        self.awake = True
        self.calls = []

    def take(self, policy):
        [bucket] = policy.parameter_buckets(1 << 20)
        return dict(bucket)[NAME].clone()

    def start(self, policy):
        self.embedding = self.take(policy) + (self.fault == "first")

    def sync_weights(self, policy):
        self.calls.append("sync")
        self.policy_version += 1
        stale = self.fault == "deaf" or (self.fault == "stuck" and self.calls.count("sync") == 2)
        if not stale:
            self.embedding = self.take(policy)

    def sleep(self, weights_change=True):
        self.calls.append("sleep")

    def wake(self):
        self.calls.append("wake")

    def generate(self, prompts, options):
        assert options.logprobs == "all"
        assert all(len(p.token_ids) > 32 for p in prompts)  # longer than a block of the KV cache
        self.calls.append("generate")
        return [SimpleNamespace(embedding=self.embedding)]


@pytest.fixture
def policy():
    torch.manual_seed(0)
    module = nn.ModuleDict({"model": nn.ModuleDict({"embed_tokens": nn.Embedding(8, 4)})})
    return LocalModel(module, OptimizerOptions())


def test(engine, policy):
    truth = policy.module["model"]["embed_tokens"].weight.detach()
    engine.start(policy)
    return run_self_test(
        engine, policy, NAME, lambda r: float((r[0].embedding - truth).abs().mean()), LIMITS, 99, "engine 1.0"
    )


test.__test__ = False


def test_a_right_engine_passes_and_is_left_as_it_was(policy):
    engine = Engine()
    result = test(engine, policy)
    assert engine.calls == ["wake", "generate", *["sleep", "sync", "wake", "generate"] * 2]
    assert (result.before, result.after) == (0.0, 0.0)
    assert result.changed > 0.1
    assert engine.policy_version == 3
    assert torch.equal(engine.embedding, policy.module["model"]["embed_tokens"].weight)


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("first", "generating with the first weights"),
        ("deaf", "a sync with model.embed_tokens.weight changed"),
        ("stuck", "a sync back to the true weights"),
    ],
)
def test_a_fault_is_found_at_its_step(policy, fault, step):
    with pytest.raises(EngineError, match=rf"engine 1.0 failed at: {step}.*--engine_type hf"):
        test(Engine(fault), policy)


def test_a_gap_that_is_no_number_fails(policy):
    engine = Engine()
    engine.start(policy)
    with pytest.raises(EngineError, match="gap between its log-probs and the trainer's is nan"):
        run_self_test(engine, policy, NAME, lambda _: float("nan"), LIMITS, 99, "engine 1.0")
