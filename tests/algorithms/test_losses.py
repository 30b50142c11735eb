"""The ppo loss and the loss aggregation, against values worked out by hand."""

import math

import pytest
import torch

from lightrft.algorithms.losses import ppo
from lightrft.algorithms.losses._common import LossOptions
from lightrft.algorithms.masking import aggregate_loss, loss_denominator
from lightrft.types import LossInputs

NAN = float("nan")


def loss_of(ratio, advantage, mask=1.0, **options):
    logprob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    one = torch.ones(1, 1)
    inputs = LossInputs(logprob, torch.zeros(1, 1), advantage * one, mask * one)
    return logprob, ppo.compute(inputs, LossOptions(**options))


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "expected"),
    [
        (1.5, 1.0, {}, -1.2),  # clipped to 1.2
        (1.5, 1.0, {"clip_high": 0.28}, -1.28),
        (1.5, -1.0, {}, 1.5),  # max(1.5, 1.2)
        (0.5, 1.0, {}, -0.5),
        (0.5, -1.0, {}, 0.8),  # clipped to .8
        (5.0, -1.0, {}, 5.0),
        (5.0, -1.0, {"dual_clip": 3.0}, 3.0),
        (5.0, -2.0, {"dual_clip": 3.0}, 6.0),  # c |A|
        (1.0, 0.7, {}, -0.7),
    ],
)
def test_values(ratio, advantage, options, expected):
    losses = loss_of(ratio, advantage, **options)[1].token_losses.detach()
    assert float(losses) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "gradient"),
    [
        (1.0, 1.0, {}, -1.0),  # d(-ratio A)/d logprob = -ratio A
        (1.5, 1.0, {}, 0.0),
        (0.5, -1.0, {}, 0.0),
        (1.5, -1.0, {}, 1.5),
        (5.0, -1.0, {"dual_clip": 3.0}, 0.0),
    ],
)
def test_gradients(ratio, advantage, options, gradient):
    logprob, outputs = loss_of(ratio, advantage, **options)
    (got,) = torch.autograd.grad(outputs.token_losses.sum(), logprob)
    assert float(got) == pytest.approx(gradient, rel=1e-6)


def test_clip_fractions_count_only_where_the_gradient_is_stopped():
    lp = torch.tensor([[1.5, 1.5, 0.5, 0.5, 1.0, 9.0]]).log()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, 1.0]])
    mask = torch.tensor([[1.0, 1, 1, 1, 1, 0]])
    metrics = ppo.compute(LossInputs(lp, torch.zeros(1, 6), advantages, mask), LossOptions()).metrics
    assert [float(v) for v in metrics["clip_fraction_high"]] == [1.0, 5.0]
    assert [float(v) for v in metrics["clip_fraction_low"]] == [1.0, 5.0]


def test_the_dual_clip_is_counted_where_it_acts():
    lp = torch.tensor([[5.0, 5.0, 2.0, 5.0]]).log()
    advantages = torch.tensor([[-1.0, 1.0, -1.0, -1.0]])
    inputs = LossInputs(lp, torch.zeros(1, 4), advantages, torch.tensor([[1.0, 1, 1, 0]]))
    metrics = ppo.compute(inputs, LossOptions(dual_clip=3.0)).metrics
    assert [float(v) for v in metrics["dual_clip_fraction"]] == [1.0, 3.0]


def test_masked_nan_reaches_neither_loss_nor_gradient():
    logprob = torch.tensor([[0.1, NAN]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0]])
    inputs = LossInputs(logprob, torch.tensor([[0.0, NAN]]), torch.tensor([[1.0, NAN]]), mask)
    losses = ppo.compute(inputs, LossOptions()).token_losses
    aggregate_loss(losses, mask, "token-mean", 2).backward()
    assert float(logprob.grad[0, 0]) == pytest.approx(-math.exp(0.1))
    assert float(logprob.grad[0, 1]) == 0.0


def test_an_absurd_ratio_stays_finite():
    lp = torch.tensor([[500.0]], requires_grad=True)
    inputs = LossInputs(lp, torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1))
    assert torch.isfinite(ppo.compute(inputs, LossOptions()).token_losses).all()


# Two sequences of token losses [1, 1] and [3, 3, 3, 3].
LOSSES = torch.tensor([[1.0, 1.0, NAN, NAN], [3.0, 3.0, 3.0, 3.0]])
MASK = torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1]])
AGGREGATED = {
    "token-mean": 14 / 6,
    "seq-mean-token-mean": 2.0,  # (1 + 3) / 2
    "seq-mean-token-sum": 7.0,  # (2 + 12) / 2
    "seq-mean-token-sum-norm": 1.75,  # 7 / 4
}


@pytest.mark.parametrize("mode", list(AGGREGATED))
def test_aggregation(mode):
    total = aggregate_loss(LOSSES, MASK, mode, max_response_len=4)
    assert float(total / loss_denominator(MASK, mode)) == pytest.approx(AGGREGATED[mode])


@pytest.mark.parametrize("mode", list(AGGREGATED))
def test_aggregation_does_not_see_the_cut_or_excluded_rows(mode):
    losses = torch.cat([LOSSES, torch.full((1, 4), NAN)])
    mask = torch.cat([MASK, torch.zeros(1, 4)])
    rows = range(3)
    total = sum(aggregate_loss(losses[i : i + 1], mask[i : i + 1], mode, 4) for i in rows)
    count = sum(loss_denominator(mask[i : i + 1], mode) for i in rows)
    assert float(total / count) == pytest.approx(AGGREGATED[mode])
