"""Weights between engine and trainer, and the measures of their gap, worked out by hand."""

import math

import pytest
import torch

from lightrft.algorithms.correction import correction_weights, gap_metrics

NAN = float("nan")
# Ratios old / rollout of 2 rows: [1, 1.5, 3, (masked)] and [.4, unknown, .5, .8]
OLD = torch.tensor(
    [[0.0, math.log(1.5), math.log(3), NAN], [math.log(0.4), -1.0, math.log(0.5), math.log(0.8)]]
)
ROLLOUT = torch.tensor([[0.0, 0.0, 0.0, 5.0], [0.0, NAN, 0.0, 0.0]])
MASK = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1, 1]),
        ("token", [1, 1.5, 2, 0.4, 1, 0.5, 0.8]),
        ("mask", [1, 1, 0, 0, 1, 1, 1]),  # within [.5, 2]
        # 1 * 1.5 * 3 = 4.5, at most 2; .4 * .5 * .8 = .16 without the unknown token
        ("sequence", [2, 2, 2, 0.16, 0.16, 0.16, 0.16]),
    ],
)
def test_weights(mode, expected):
    # the trainer's .5 is exp(ln .5) in float32: a hair's breadth of slack on the bound keeps it inside
    got = correction_weights(OLD, ROLLOUT, MASK, mode, 2.0 + 1e-6)
    assert got[MASK.bool()].tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("mode", ["none", "token", "sequence", "mask"])
def test_weights_carry_no_gradient_and_stay_finite(mode):
    old = torch.tensor([[500.0, -500.0, NAN]], requires_grad=True)
    got = correction_weights(old, torch.zeros(1, 3), torch.tensor([[1.0, 1, 0]]), mode, 2.0)
    assert not got.requires_grad
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("mode", ["none", "token", "sequence", "mask"])
def test_equal_logprobs_weigh_one(mode):
    logprobs = torch.tensor([[-0.5, -3.0, -1.0]])
    assert correction_weights(logprobs, logprobs, torch.ones(1, 3), mode, 2.0).tolist() == [[1.0] * 3]


def test_gap_metrics():
    sums, largest = gap_metrics(OLD, ROLLOUT, MASK, cap=2.0)
    ratios = [1.0, 1.5, 3.0, 0.4, 0.5, 0.8]  # the unknown and the masked token do not count
    assert {float(count) for _, count in sums.values()} == {6.0}
    # |ln|: 0 + .405465 + 1.098612 + .916291 + .693147 + .223144
    assert float(sums["logprob_gap_mean"][0]) == pytest.approx(3.336659, abs=1e-5)
    # w - 1 - ln w: 0 + .094535 + .901388 + .316291 + .193147 + .023144
    assert float(sums["gap_kl"][0]) == pytest.approx(1.528505, abs=1e-5)
    assert float(sums["capped_share"][0]) == 1.0
    # 7.2^2 / (6 * (1 + 2.25 + 9 + .16 + .25 + .64)) = 51.84 / 79.8
    assert sum(ratios) == pytest.approx(7.2)
    total, count = sums["effective_sample_share"]
    assert float(total / count) == pytest.approx(51.84 / 79.8, abs=1e-5)
    assert float(largest) == pytest.approx(math.log(3))


def test_the_effective_share_is_that_of_all_ranks():
    """Another rank holds one token of weight 2: (1 + 2)^2 / (2 * (1 + 4)) = .9."""
    zero = torch.zeros(1, 1)
    other = torch.tensor([1.0, 2.0, 4.0])
    sums, _ = gap_metrics(zero, zero, torch.ones(1, 1), reduce_sum=lambda own: own + other)
    total, count = sums["effective_sample_share"]
    assert float(total / count) == pytest.approx(0.9)


def test_no_known_token_measures_nothing():
    sums, largest = gap_metrics(OLD, torch.full_like(OLD, NAN), MASK)
    for name, (total, count) in sums.items():
        assert (float(total), float(count)) == (0.0, 0.0), name
    assert float(largest) == 0.0
