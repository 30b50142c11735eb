"""The other policy losses and the value loss, values and gradients worked out by hand."""

import math

import pytest
import torch

from lightrft.algorithms.losses import cispo, cpgd, gmpo, gspo, sapo
from lightrft.algorithms.losses._common import LossOptions
from lightrft.algorithms.value_loss import value_loss
from lightrft.types import LossInputs

NAN = float("nan")


def evaluate(loss, new, old, advantages, **options):
    """Token losses, gradient of their sum, metrics, of one row."""
    logprobs = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    others = [torch.tensor([x], dtype=torch.float64) for x in (old, advantages)]
    outputs = loss.compute(LossInputs(logprobs, *others, torch.ones_like(logprobs)), LossOptions(**options))
    (gradient,) = torch.autograd.grad(outputs.token_losses.sum(), logprobs)
    metrics = {name: float(total) for name, (total, _) in outputs.metrics.items()}
    return outputs.token_losses[0].tolist(), gradient[0].tolist(), metrics


def at_ratio(loss, ratio, advantage, **options):
    """Loss and gradient of one token with this ratio and old log-prob -1."""
    values, gradient, _ = evaluate(loss, [math.log(ratio) - 1], [-1.0], [advantage], **options)
    return values[0], gradient[0]


# --- cpgd ---


@pytest.mark.parametrize(
    ("new", "old", "advantage", "value", "gradient"),
    [
        # cap -1.5 + ln 1.2 = -1.31768 lies below -1: capped, no gradient
        (-1.0, -1.5, 1.0, 1.31768, 0.0),
        # floor -1.5 + ln .8 = -1.72314 lies below -1: -(-1)(-1) = -1, gradient -A = 1
        (-1.0, -1.5, -1.0, -1.0, 1.0),
        # inside both: -A lp, gradient -A
        (-1.4, -1.5, 2.0, 2.8, -2.0),
        # below the floor of -1.22314: floored, no gradient
        (-2.0, -1.0, -1.0, -1.22314, 0.0),
        # far below with A > 0 nothing stops it
        (-2.0, -1.0, 1.0, 2.0, -1.0),
    ],
)
def test_cpgd(new, old, advantage, value, gradient):
    values, gradients, _ = evaluate(cpgd, [new], [old], [advantage])
    assert values[0] == pytest.approx(value, abs=1e-5)
    assert gradients[0] == pytest.approx(gradient, abs=1e-9)


def test_cpgd_clip_sides_are_not_swapped():
    # cap ln 1.5 = .405465 above old 0; floor ln .9 = -.105361 below
    up, _ = at_ratio(cpgd, 3.0, 1.0, clip_low=0.1, clip_high=0.5)
    down, _ = at_ratio(cpgd, 0.2, -1.0, clip_low=0.1, clip_high=0.5)
    assert up == pytest.approx(1 - 0.405465, abs=1e-6)
    assert down == pytest.approx(-1 - 0.105361, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "drift", "weight"),
    [
        (1.0, 0.0, 0.0),
        (2.0, 0.306853, 1.0),  # 2 - 1 - ln 2; weight 2 - 1
        (0.5, 0.193147, -0.5),  # .5 - 1 + ln 2; weight .5 - 1
        (10.0, 6.697415, 2.0),  # 10 - 1 - ln 10; weight 9, capped at 2
    ],
)
def test_cpgd_drift_pulls_back_to_the_old_policy(ratio, drift, weight):
    value, gradient = at_ratio(cpgd, ratio, 0.0, drift_coef=0.5)
    assert value == pytest.approx(0.5 * drift, abs=1e-6)
    assert gradient == pytest.approx(0.5 * weight, abs=1e-9)


def test_cpgd_metrics():
    # one capped, one floored, two free of which one has the ratio 2 and A < 0; drift 2 * .306853 + .193147
    new = [math.log(2), math.log(0.5), math.log(2), 0.0]
    _, _, metrics = evaluate(cpgd, new, [0.0] * 4, [1.0, -1.0, -1.0, 1.0])
    assert metrics["clip_fraction_high"] == 1.0
    assert metrics["clip_fraction_low"] == 1.0
    assert metrics["drift"] == pytest.approx(0.806853, abs=1e-6)


# --- gspo ---


def test_gspo_has_one_ratio_for_all_tokens():
    # exp((.1 + .3) / 2) = 1.2214; with A = -1 the loss is the ratio
    values, gradient, _ = evaluate(gspo, [0.1, 0.3], [0.0, 0.0], [-1.0, -1.0])
    assert values == pytest.approx([1.2214, 1.2214], abs=1e-4)
    assert gradient == pytest.approx([1.2214, 1.2214], abs=1e-4)  # each through its own log-prob


def test_gspo_gradient_sums_to_that_of_the_sequence_ratio():
    # L = -2 s A / 2 tokens has dL/dlp_t = -A s / 2 each; the token form's mean over two tokens is the same
    values, gradient, _ = evaluate(gspo, [0.05, 0.1], [0.0, 0.0], [0.7, 0.7])
    s = math.exp(0.075)
    assert values == pytest.approx([-0.7 * s] * 2)
    assert [g / 2 for g in gradient] == pytest.approx([-0.7 * s / 2] * 2)


def test_gspo_clips_the_whole_response():
    # s = 1.2214 > 1.2, A = 1: both tokens are clipped, also the one whose own ratio 1.105 is inside
    values, gradient, metrics = evaluate(gspo, [0.1, 0.3], [0.0, 0.0], [1.0, 1.0])
    assert values == pytest.approx([-1.2, -1.2])
    assert gradient == [0.0, 0.0]
    assert metrics["clip_fraction_high"] == 2.0


def test_gspo_averages_over_response_tokens_only():
    logprobs = torch.tensor([[NAN, 0.1, 0.3, 9.0]])
    mask = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    inputs = LossInputs(logprobs, torch.tensor([[NAN, 0.0, 0.0, 0.0]]), -torch.ones(1, 4), mask)
    got = gspo.compute(inputs, LossOptions()).token_losses[0, 1:3].tolist()
    assert got == pytest.approx([1.2214, 1.2214], abs=1e-4)


# --- gmpo ---


def test_gmpo_clips_tokens_before_the_geometric_mean():
    # log-ratios .1 and .5, the second capped at ln 1.2 = .182322: s = exp(.141161) = 1.151610
    values, gradient, metrics = evaluate(gmpo, [0.1, 0.5], [0.0, 0.0], [1.0, 1.0])
    assert values == pytest.approx([-1.151610] * 2, abs=1e-6)
    # d(sum of two losses -s)/dlp_0 = -2 s / 2; the capped token has none
    assert gradient == pytest.approx([-1.151610, 0.0], abs=1e-6)
    assert (metrics["clip_fraction_high"], metrics["clip_fraction_low"]) == (1.0, 0.0)


def test_gmpo_floors_where_the_advantage_is_negative():
    # log-ratios -.5 -> ln .8 = -.223144 and .5 stays: s = exp(.138428) = 1.148468
    values, gradient, metrics = evaluate(gmpo, [-0.5, 0.5], [0.0, 0.0], [-1.0, -1.0])
    assert values == pytest.approx([1.148468] * 2, abs=1e-6)
    assert gradient == pytest.approx([0.0, 1.148468], abs=1e-6)
    assert (metrics["clip_fraction_high"], metrics["clip_fraction_low"]) == (0.0, 1.0)


# --- cispo ---


@pytest.mark.parametrize(
    ("ratio", "weight"),
    [(1.0, 1.0), (1.1, 1.1), (3.0, 1.28), (0.5, 0.8)],  # clipped to [.8, 1.28]
)
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_cispo_weighs_the_policy_gradient(ratio, weight, advantage):
    value, gradient = at_ratio(cispo, ratio, advantage, clip_high=0.28)
    assert value == pytest.approx(-weight * advantage * (math.log(ratio) - 1))
    assert gradient == pytest.approx(-weight * advantage)  # never 0, and not through the ratio


def test_cispo_counts_both_sides():
    _, _, metrics = evaluate(cispo, [1.0, 2.0, -1.0, 0.0], [0.0] * 4, [1.0, -1.0, 1.0, 1.0])
    assert (metrics["clip_fraction_high"], metrics["clip_fraction_low"]) == (2.0, 1.0)


# --- sapo ---


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_sapo_at_ratio_one_has_the_policy_gradient(advantage):
    # sigmoid(0) 4 / tau = 2 / tau; its slope 4 s (1 - s) = 1
    value, gradient = at_ratio(sapo, 1.0, advantage)
    tau = 1.0 if advantage > 0 else 1.05
    assert value == pytest.approx(-2 / tau * advantage)
    assert gradient == pytest.approx(-advantage)


@pytest.mark.parametrize(
    ("advantage", "value", "gradient"),
    [
        # rho 2, tau 1: s = sigmoid(1) = .731059; -4 s = -2.924234; gradient -4 s (1 - s) rho = -1.572895
        (1.0, -2.924234, -1.572895),
        # tau 1.05: s = sigmoid(1.05) = .740775; 4 s / 1.05 = 2.821999; 4 s (1 - s) 2 = 1.536220
        (-1.0, 2.821999, 1.536220),
    ],
)
def test_sapo_away_from_one(advantage, value, gradient):
    got = at_ratio(sapo, 2.0, advantage)
    assert got == (pytest.approx(value, abs=1e-5), pytest.approx(gradient, abs=1e-5))


def test_sapo_gate_metric():
    # 1 at rho 1; 4 * .731059 * .268941 = .786448 at rho 2
    _, _, metrics = evaluate(sapo, [0.0, math.log(2)], [0.0, 0.0], [1.0, 1.0])
    assert metrics["gate"] == pytest.approx(1.786448, abs=1e-6)


# --- First step: the policy is the one that sampled ---


@pytest.mark.parametrize("loss", [cispo, cpgd, gspo, sapo])
def test_at_the_first_step_the_gradient_is_the_policy_gradient(loss):
    advantages = [0.5, -0.5, 2.0]
    _, gradient, _ = evaluate(loss, [-1.0, -0.1, -3.0], [-1.0, -0.1, -3.0], advantages, drift_coef=0.1)
    assert gradient == pytest.approx([-a for a in advantages])


def test_at_the_first_step_gmpo_spreads_the_policy_gradient():
    # each token's loss -A_t s has d/dlp = -A_t / 3 in every token: -(.5 - .5 + 2) / 3
    _, gradient, _ = evaluate(gmpo, [-1.0, -0.1, -3.0], [-1.0, -0.1, -3.0], [0.5, -0.5, 2.0])
    assert gradient == pytest.approx([-2 / 3] * 3)


@pytest.mark.parametrize("loss", [cispo, cpgd, gmpo, gspo, sapo])
@pytest.mark.parametrize("far", [300.0, -300.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_absurd_ratio_stays_finite(loss, far, advantage):
    values, gradient, metrics = evaluate(loss, [far], [0.0], [advantage], drift_coef=0.1)
    assert all(math.isfinite(x) for x in (*values, *gradient, *metrics.values()))


# --- Value loss ---


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (1.0, 0.9, 0.0, 0.5, 1.0),  # within the clip of .2: (1 - 0)^2 / 2
        (1.0, 0.5, 2.0, 0.845, 0.0),  # clipped to .7: max(1, 1.69) / 2, its gradient stopped
        (1.0, 0.5, 0.0, 0.5, 1.0),  # clipped to .7: max(1, .49) / 2, too far already: moves on
        (0.0, 1.0, -2.0, 3.92, 0.0),  # clipped to .8: max(4, 7.84) / 2
    ],
)
def test_value_loss(value, old, target, loss, gradient):
    values = torch.tensor([[value]], requires_grad=True)
    got, (clipped, count) = value_loss(
        values, torch.tensor([[old]]), torch.tensor([[target]]), torch.ones(1, 1), 0.2
    )
    (slope,) = torch.autograd.grad(got.sum(), values)
    assert float(got.detach()) == pytest.approx(loss)
    assert float(slope) == pytest.approx(gradient)
    assert (float(clipped), float(count)) == (float(gradient == 0.0), 1.0)


def test_value_loss_does_not_see_masked_nan():
    values = torch.tensor([[1.0, NAN]], requires_grad=True)
    nan = torch.tensor([[1.0, NAN]])
    got, (clipped, count) = value_loss(values, nan, nan - 1, torch.tensor([[1.0, 0.0]]), 0.2)
    (slope,) = torch.autograd.grad(got.sum(), values)
    assert got.tolist() == [[0.5, 0.0]]
    assert slope.tolist() == [[1.0, 0.0]]
    assert (float(clipped), float(count)) == (0.0, 1.0)
