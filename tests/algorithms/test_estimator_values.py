"""The other estimators, against values worked out by hand."""

import pytest
import torch

from lightrft.algorithms.advantages import (
    cpgd,
    gae,
    on_policy_distillation,
    reinforce,
    reinforce_baseline,
    reinforce_plus_plus,
    rloo,
)
from lightrft.algorithms.advantages._common import AdvantageInputs
from lightrft.algorithms.shaping import whiten

NAN = float("nan")
EIGHT = [1.0] * 3 + [0.0] * 5
GROUPED = [cpgd, reinforce_baseline, rloo]


def inputs(rewards, groups=None, mask=None, **kwargs):
    mask = torch.ones(len(rewards), 3) if mask is None else torch.tensor(mask, dtype=torch.float32)
    token_rewards = kwargs.pop("token_rewards", torch.zeros_like(mask))
    groups = torch.tensor(groups or [0] * len(rewards))
    return AdvantageInputs(torch.tensor(rewards), groups, mask, token_rewards, **kwargs)


def first(estimator, *args, **kwargs):
    """The advantage of each row's first token."""
    return estimator.compute(inputs(*args, **kwargs)).advantages[:, 0].tolist()


def test_rloo_three_right_of_eight():
    # a right one: 1 - 2/7 = .7143; a wrong one: 0 - 3/7 = -.4286
    assert first(rloo, EIGHT) == pytest.approx([0.7143] * 3 + [-0.4286] * 5, abs=1e-4)


def test_rloo_leaves_out_excluded_rows():
    # of [1, nan, 0, .5]: 1 - (0 + .5)/2, -, 0 - 1.5/2, .5 - 1/2
    assert first(rloo, [1.0, NAN, 0.0, 0.5]) == pytest.approx([0.75, 0.0, -0.75, 0.0])


def test_rloo_of_a_pair_is_the_difference():
    assert first(rloo, [3.0, 1.0]) == pytest.approx([2.0, -2.0])


def test_reinforce_baseline_before_whitening():
    # mean 3/8 = .375
    assert first(reinforce_baseline, EIGHT) == pytest.approx([0.625] * 3 + [-0.375] * 5)


def test_cpgd_is_normalised_and_constant_over_the_response():
    # as group_norm: .625 / .517549 = 1.2076; the discount and the token rewards do not enter
    got = cpgd.compute(inputs(EIGHT, gamma=0.5, token_rewards=torch.full((8, 3), -9.0))).advantages
    expected = torch.tensor([1.2076] * 3 + [-0.7246] * 5).unsqueeze(-1).expand(8, 3)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_cpgd_mean_only():
    assert first(cpgd, EIGHT, group_std=False) == pytest.approx([0.625] * 3 + [-0.375] * 5)


@pytest.mark.parametrize("estimator", [reinforce, reinforce_plus_plus])
def test_reinforce_discounts(estimator):
    # R = [.1, 0, 2], gamma .5: A_2 = 2, A_1 = 1, A_0 = .1 + .5
    got = estimator.compute(inputs([2.0], gamma=0.5, token_rewards=torch.tensor([[0.1, 0.0, 0.0]])))
    assert got.advantages[0].tolist() == pytest.approx([0.6, 1.0, 2.0])


def test_reinforce_plus_plus_whitened():
    # returns 2 and 0 for three tokens each: mean 1, variance 1 -> +1, -1
    raw = reinforce_plus_plus.compute(inputs([2.0, 0.0], [0, 1])).advantages
    got = whiten(raw, torch.ones(2, 3), lambda t: t)
    assert got.tolist() == [pytest.approx([1.0] * 3), pytest.approx([-1.0] * 3)]


# --- Tied groups, close rewards, survivors ---


@pytest.mark.parametrize("estimator", GROUPED)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6, -3.3])
def test_a_tied_group_is_exactly_zero(estimator, value):
    assert first(estimator, [value] * 5) == [0.0] * 5


@pytest.mark.parametrize("estimator", GROUPED)
def test_a_single_survivor_teaches_nothing(estimator):
    assert first(estimator, [NAN, 1.0, NAN]) == [0.0] * 3


@pytest.mark.parametrize("estimator", [rloo, reinforce_baseline])
def test_close_rewards_keep_their_distance(estimator):
    # two rewards .001 apart: rloo +-.001, minus the mean +-.0005; neither is shrunk
    scale = 1.0 if estimator is rloo else 0.5
    got = first(estimator, [1.001, 1.0])
    assert got == pytest.approx([0.001 * scale, -0.001 * scale], rel=1e-3)


# --- GAE ---


def one_row(**kwargs):
    values = torch.tensor([[0.5, 0.6, 0.7]])
    return gae.compute(inputs([1.0], values=values, lambd=0.95, **kwargs))


def test_gae():
    # deltas: 0 + .6 - .5 = .1; 0 + .7 - .6 = .1; 1 + 0 - .7 = .3
    # A_2 = .3, A_1 = .1 + .95 * .3 = .385, A_0 = .1 + .95 * .385 = .46575; returns A + V
    got = one_row()
    assert got.advantages[0].tolist() == pytest.approx([0.46575, 0.385, 0.3])
    assert got.returns[0].tolist() == pytest.approx([0.96575, 0.985, 1.0])


def test_gae_with_a_discount():
    # gamma .9: deltas .9*.6 - .5 = .04; .9*.7 - .6 = .03; .3; decay .9 * .95 = .855
    # A_1 = .03 + .855 * .3 = .2865; A_0 = .04 + .855 * .2865 = .2849575
    assert one_row(gamma=0.9).advantages[0].tolist() == pytest.approx([0.2849575, 0.2865, 0.3])


def test_gae_skips_a_masked_token_as_if_it_were_not_there():
    mask = [[1, 0, 1, 1]]
    values = torch.tensor([[0.5, NAN, 0.6, 0.7]])
    token_rewards = torch.tensor([[0.0, NAN, 0.0, 0.0]])
    got = gae.compute(inputs([1.0], None, mask, values=values, token_rewards=token_rewards))
    assert got.advantages[0].tolist() == pytest.approx([0.46575, 0.0, 0.385, 0.3])
    assert got.returns[0].tolist() == pytest.approx([0.96575, 0.0, 0.985, 1.0])


def test_gae_with_lambda_one_is_the_return_less_the_value():
    got = gae.compute(inputs([1.0], values=torch.tensor([[0.5, 0.6, 0.7]]), lambd=1.0))
    assert got.advantages[0].tolist() == pytest.approx([0.5, 0.4, 0.3])
    assert got.returns[0].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_gae_without_values_is_refused():
    with pytest.raises(ValueError, match="critic"):
        gae.compute(inputs([1.0]))


# --- Distillation ---

TEACHER = torch.tensor([[-1.0, -0.5, -2.0]] * 2)
OLD = torch.tensor([[-1.5, -0.5, -1.0]] * 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # teacher - old = .5, 0, -1; a pair [1, 0] has the task advantage +-.7071
        ({"task_reward": False}, [[0.5, 0.0, -1.0], [0.5, 0.0, -1.0]]),
        ({}, [[1.2071, 0.7071, -0.2929], [-0.2071, -0.7071, -1.7071]]),
        ({"opd_kl_coef": 0.1}, [[0.7571, 0.7071, 0.6071], [-0.6571, -0.7071, -0.8071]]),
    ],
)
def test_distillation(options, expected):
    batch = inputs([1.0, 0.0], teacher_logprobs=TEACHER, old_logprobs=OLD, **options)
    got = on_policy_distillation.compute(batch).advantages
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=1e-4)


def test_distillation_without_a_teacher_is_refused():
    with pytest.raises(ValueError, match="teacher"):
        on_policy_distillation.compute(inputs([1.0], old_logprobs=OLD[:1]))
