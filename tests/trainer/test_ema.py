"""The moving average: its numbers, which rank keeps it, the way to disk and back."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.errors import CheckpointError, ConfigError
from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.trainer.ema import EMA
from lightrft.trainer.export import PREFIX


class Weights:
    """A model whose weights training sets by hand, all to one value."""

    def __init__(self, value, dtype=torch.float32):
        self.module = nn.Linear(1, 1, dtype=dtype)
        self.gathered = 0
        self.set(value)

    def set(self, value):
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.fill_(value)

    def full_parameters(self):
        for name, parameter in self.module.named_parameters():
            self.gathered += 1
            yield name, parameter.detach()


def value(ema):
    weight, bias = (average.item() for _, average in ema.parameters())
    assert weight == bias
    return weight


def test_the_average_by_hand():
    """beta .9, from 1: .9 * 1 + .1 * 2 = 1.1, then .9 * 1.1 + .1 * 4 = 1.39"""
    policy, ema = Weights(1.0), EMA(0.9)
    ema.start(policy)
    assert value(ema) == 1.0
    policy.set(2.0)
    ema.update(policy)
    assert value(ema) == pytest.approx(1.1)
    policy.set(4.0)
    ema.update(policy)
    assert value(ema) == pytest.approx(1.39)
    assert policy.module.weight.item() == 4.0


def test_a_second_start_begins_anew():
    policy, ema = Weights(1.0), EMA(0.9)
    ema.start(policy)
    policy.set(5.0)
    ema.start(policy)
    assert value(ema) == 5.0


def test_without_a_start_the_first_update_is_the_beginning():
    policy, ema = Weights(2.0), EMA(0.9)
    ema.update(policy)
    policy.set(4.0)
    ema.update(policy)
    assert value(ema) == pytest.approx(0.9 * 2 + 0.1 * 4)


def test_beta_0_follows_the_policy_and_nonsense_is_refused():
    policy, ema = Weights(1.0), EMA(0.0)
    ema.start(policy)
    policy.set(3.0)
    ema.update(policy)
    assert value(ema) == 3.0
    for beta in (1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="--ema_beta"):
            EMA(beta)


def test_small_steps_of_bfloat16_weights_add_up_in_float32():
    """A thousandth of 1 is below bfloat16's resolution at 1: an average in bfloat16 would never move."""
    policy, ema = Weights(1.0, torch.bfloat16), EMA(0.999)
    ema.start(policy)
    policy.set(2.0)
    for _ in range(10):
        ema.update(policy)
    kept = ema.state_dict()["weights"]["weight"]
    assert kept.dtype == torch.float32
    assert kept.item() == pytest.approx(2 - 0.999**10, abs=1e-6)
    assert dict(ema.parameters())["weight"].dtype == torch.bfloat16


def test_other_ranks_gather_and_keep_nothing(monkeypatch):
    monkeypatch.setattr("lightrft.trainer.ema.rank", lambda: 1)
    policy, ema = Weights(1.0), EMA(0.9)
    ema.start(policy)
    ema.update(policy)
    assert policy.gathered == 4  # two parameters, twice: a collective that no rank leaves early
    assert list(ema.parameters()) == []
    ema.load_state_dict(ema.state_dict())
    assert ema.state_dict() == {"weights": {}}


def test_a_resumed_average_goes_on_as_if_uninterrupted(tmp_path):
    policy, ema = Weights(1.0), EMA(0.9)
    ema.start(policy)
    policy.set(2.0)
    ema.update(policy)
    torch.save(ema.state_dict(), tmp_path / "state.pt")
    resumed = EMA(0.9)
    resumed.start(policy)  # at the resumed weights, which are not the average
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    policy.set(4.0)
    for average in (ema, resumed):
        average.update(policy)
    assert value(resumed) == value(ema) == pytest.approx(1.39)


def test_a_loaded_state_is_not_shared_with_its_source():
    policy, ema = Weights(1.0), EMA(0.5)
    ema.start(policy)
    state = copy.deepcopy(ema.state_dict())
    resumed = EMA(0.5)
    resumed.load_state_dict(state)
    policy.set(3.0)
    resumed.update(policy)
    assert value(resumed) == 2.0
    assert state["weights"]["weight"].item() == 1.0


def test_the_state_of_another_model_is_refused():
    policy, ema = Weights(1.0), EMA(0.9)
    ema.start(policy)
    for state in (
        {"weights": {"weight": torch.zeros(2, 1)}},
        {"weights": {"other": torch.zeros(1, 1)}},
        {"weights": {}},
    ):
        with pytest.raises(CheckpointError, match=r"average is of another model: .*in the checkpoint"):
            ema.load_state_dict(state)
    assert value(ema) == 1.0


@torch.no_grad()
def test_the_exported_average_loads_as_a_model(tiny_model, tmp_path):
    model = load_causal_lm(ModelOptions(str(tiny_model)))
    policy = LocalStrategy().prepare_trainable(Policy(model), OptimizerOptions())
    ema = EMA(0.75)
    ema.start(policy)
    for parameter in model.parameters():
        parameter.mul_(2.0)
    ema.update(policy)
    state = {name.removeprefix(PREFIX): average for name, average in ema.parameters()}
    model.save_pretrained(tmp_path / "ema", state_dict=state)
    load_tokenizer(str(tiny_model)).save_pretrained(tmp_path / "ema")
    before = AutoModelForCausalLM.from_pretrained(tiny_model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ema")
    for (name, start), now in zip(before.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(now, 1.25 * start, msg=name)  # .75 * w + .25 * 2 w
