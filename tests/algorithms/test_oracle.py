"""Random batches: the torch code against the slow NumPy oracle, in float64, to 1e-6."""

import math

import numpy as np
import pytest
import torch

from lightrft import registry
from lightrft.algorithms.advantages._common import AdvantageInputs
from lightrft.algorithms.components import load_estimator, load_loss
from lightrft.algorithms.correction import correction_weights
from lightrft.algorithms.kl import kl_estimate
from lightrft.algorithms.losses._common import LossOptions
from lightrft.algorithms.masking import aggregate_loss, loss_denominator
from lightrft.algorithms.shaping import overlong_penalty, whiten
from lightrft.algorithms.value_loss import value_loss
from lightrft.types import LossInputs
from tests.algorithms import oracle

SEEDS = range(6)
ESTIMATORS = registry.names("algorithms/advantages")
LOSSES = registry.names("algorithms/losses")
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
NAN = float("nan")


def random_mask(rng, rows, width):
    """Holes everywhere, one row without a token."""
    mask = (rng.random((rows, width)) < 0.7).astype(float)
    mask[rng.integers(rows)] = 0.0
    return mask


def beside(rng, mask, scale=1.0):
    """Normal values at response tokens, NaN beside them."""
    return np.where(mask > 0, rng.normal(size=mask.shape) * scale, np.nan)


def random_case(seed):
    rng = np.random.default_rng(seed)
    sizes = [4, 1, 3, 5, 2, 3]
    groups = np.repeat(rng.permutation(len(sizes)) * 7, sizes)
    rewards = rng.normal(size=len(groups)).round(2)
    rewards[groups == groups[0]] = 0.1  # a tied group
    rewards[5:7] = rng.normal() + np.array([0.0, 1e-3])  # and close rewards
    rewards[rng.integers(5, len(groups), size=3)] = NAN
    order = rng.permutation(len(groups))
    mask = random_mask(rng, len(groups), 7)
    parts = [beside(rng, mask, 0.3) for _ in range(4)]
    return oracle.Case(
        rewards[order],
        groups[order],
        mask,
        *parts,
        gamma=[1.0, 0.9][seed % 2],
        lambd=[0.95, 0.5, 1.0][seed % 3],
        group_std=seed % 4 != 1,
        opd_kl_coef=[1.0, 0.3][seed % 2],
        task_reward=seed % 3 != 2,
    )


def tensor_inputs(case):
    names = {"values": case.values, "old_logprobs": case.old, "teacher_logprobs": case.teacher}
    flags = ("gamma", "lambd", "group_std", "opd_kl_coef", "task_reward")
    return AdvantageInputs(
        torch.tensor(case.rewards),
        torch.tensor(case.groups),
        torch.tensor(case.mask),
        torch.tensor(case.token_rewards),
        **{name: torch.tensor(x) for name, x in names.items()},
        **{name: getattr(case, name) for name in flags},
    )


def assert_close(got, expected):
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=1e-6)


def test_the_oracle_covers_every_built_in():
    assert set(oracle.ESTIMATORS) == set(ESTIMATORS)
    assert set(oracle.LOSSES) == set(LOSSES)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name, seed):
    case = random_case(seed)
    expected = oracle.ESTIMATORS[name](case)
    assert np.abs(expected).sum() > 1  # the case is not trivial
    assert_close(load_estimator(name).compute(tensor_inputs(case)).advantages, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_returns_are_advantages_plus_values(seed):
    case = random_case(seed)
    returns = load_estimator("gae").compute(tensor_inputs(case)).returns
    assert_close(returns, np.where(case.mask > 0, oracle.gae(case) + np.nan_to_num(case.values), 0.0))


def random_loss_case(seed):
    rng = np.random.default_rng(100 + seed)
    mask = random_mask(rng, 6, 8)
    new, old, advantages = beside(rng, mask) - 1, beside(rng, mask) - 1, beside(rng, mask)
    old = np.where(rng.random(mask.shape) < 0.5, new + rng.normal(size=mask.shape) * 0.1, old)
    advantages[rng.random(mask.shape) < 0.1] = 0.0
    dual, drift = [0.0, 3.0][seed % 2], [0.0, 0.01, 0.5][seed % 3]
    return oracle.LossCase(new, old, advantages, mask, 0.2, 0.28, dual, drift)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, seed):
    case = random_loss_case(seed)
    fields = (torch.tensor(x) for x in (case.new, case.old, case.advantages, case.mask))
    options = LossOptions(case.low, case.high, case.dual_clip, case.drift)
    got = load_loss(name)(LossInputs(*fields), options).token_losses
    inside = case.mask > 0
    assert_close(got[torch.tensor(inside)], oracle.LOSSES[name](case)[inside])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregation(mode, seed):
    rng = np.random.default_rng(seed)
    mask = random_mask(rng, 5, 6)
    losses = beside(rng, mask)
    total = aggregate_loss(torch.tensor(losses), torch.tensor(mask), mode, 9)
    count = loss_denominator(torch.tensor(mask), mode)
    assert_close(total / count, oracle.aggregate(losses, mask, mode, 9))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl(estimator):
    new, ref = np.random.default_rng(0).normal(size=(2, 30)) * 2
    expected = [oracle.kl(a, b, estimator) for a, b in zip(new, ref, strict=True)]
    assert_close(kl_estimate(torch.tensor(new), torch.tensor(ref), estimator), expected)


def test_value_loss():
    rng = np.random.default_rng(1)
    mask = random_mask(rng, 5, 6)
    parts = [beside(rng, mask) for _ in range(3)]
    got, _ = value_loss(*(torch.tensor(x) for x in (*parts, mask)), 0.4)
    for i, t in zip(*np.nonzero(mask), strict=True):
        expected = oracle.value_loss(*(float(x[i, t]) for x in parts), 0.4)
        assert float(got[i, t]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", ["none", "token", "sequence", "mask"])
@pytest.mark.parametrize("seed", SEEDS)
def test_correction(mode, seed):
    rng = np.random.default_rng(seed)
    mask = random_mask(rng, 5, 6)
    old, rollout = beside(rng, mask), beside(rng, mask)
    rollout[rng.random(mask.shape) < 0.2] = NAN
    got = correction_weights(torch.tensor(old), torch.tensor(rollout), torch.tensor(mask), mode, 2.0)
    for i, t in zip(*np.nonzero(mask), strict=True):
        expected = oracle.weight(old, rollout, mask, i, t, mode, 2.0)
        assert float(got[i, t]) == pytest.approx(expected, abs=1e-9)


def test_overlong():
    got = overlong_penalty(torch.arange(0, 31), 30, 7, 0.5)
    assert got.tolist() == pytest.approx([oracle.overlong(n, 30, 7, 0.5) for n in range(31)], abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening(seed):
    rng = np.random.default_rng(seed)
    mask = random_mask(rng, 5, 6)
    x = beside(rng, mask, 3.0) + 100
    assert_close(whiten(torch.tensor(x), torch.tensor(mask), lambda t: t), oracle.whitened(x, mask))


def test_whitening_a_batch_without_a_token():
    got = whiten(torch.full((2, 3), NAN), torch.zeros(2, 3), lambda t: t)
    assert got.tolist() == [[0.0] * 3] * 2
    assert not any(math.isnan(v) for v in got.flatten().tolist())
