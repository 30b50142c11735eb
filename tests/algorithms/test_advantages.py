"""group_norm and what estimators share, against values worked out by hand."""

import pytest
import torch

from lightrft.algorithms.advantages import group_norm
from lightrft.algorithms.advantages._common import AdvantageInputs, group_stats, zero_spread_groups

NAN = float("nan")


def inputs(rewards, groups, mask=None, **kwargs):
    mask = torch.ones(len(rewards), 3) if mask is None else torch.tensor(mask, dtype=torch.float32)
    token_rewards = kwargs.pop("token_rewards", torch.zeros_like(mask))
    return AdvantageInputs(torch.tensor(rewards), torch.tensor(groups), mask, token_rewards, **kwargs)


def scores(rewards, groups, **kwargs):
    """The advantage of each row's first response token."""
    return group_norm.compute(inputs(rewards, groups, **kwargs)).advantages[:, 0].tolist()


def test_one_right_of_four():
    # mean .25, deviations .75, -.25 x3; unbiased variance (.5625 + 3 * .0625) / 3 = .25, std .5
    assert scores([1.0, 0, 0, 0], [0] * 4) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_three_right_of_eight():
    # mean .375; variance (3 * .625**2 + 5 * .375**2) / 7 = .267857, std .517549; .625 / .517549 = 1.2076
    got = scores([1.0] * 3 + [0.0] * 5, [0] * 8)
    assert got == pytest.approx([1.2076] * 3 + [-0.7246] * 5, abs=1e-4)


def test_mean_only_is_dr_grpo():
    got = scores([1.0] * 3 + [0.0] * 5, [0] * 8, group_std=False)
    assert got == pytest.approx([0.625] * 3 + [-0.375] * 5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.9, 1e6, -3.3])
def test_a_tied_group_is_exactly_zero(value):
    assert scores([value] * 4, [0] * 4) == [0.0] * 4


def test_a_tie_left_by_float32_arithmetic_is_zero_too():
    third = torch.tensor(1.0) / 3
    rewards = [float(third), float(third + 2e-8), float(third), float(third - 2e-8)]
    assert scores(rewards, [0] * 4) == [0.0] * 4


def test_close_rewards_that_do_differ_are_normalised_in_full():
    # A spread of 1e-3 around 1: deviations +-5e-4, unbiased std of a pair = spread / sqrt(2)
    got = scores([1.001, 1.0], [0, 0])
    assert got == pytest.approx([0.7071, -0.7071], abs=2e-3)


def test_an_excluded_row_leaves_the_others_their_own_mean():
    # of [1, nan, 0, nan] only 1 and 0 count: mean .5, std .7071
    got = scores([1.0, NAN, 0.0, NAN], [0] * 4)
    assert got == pytest.approx([0.7071, 0.0, -0.7071, 0.0], abs=1e-4)


def test_a_single_survivor_teaches_nothing():
    assert scores([NAN, 1.0, NAN, NAN], [0] * 4) == [0.0] * 4


def test_a_group_without_any_reward_is_zero():
    assert scores([NAN] * 3, [0] * 3) == [0.0] * 3


def test_groups_do_not_see_each_other_whatever_their_order():
    rewards, groups = [1.0, 5.0, 0.0, 5.0, 0.0, 7.0], [3, 8, 3, 8, 3, 8]
    alone = scores([1.0, 0.0, 0.0], [0] * 3), scores([5.0, 5.0, 7.0], [0] * 3)
    got = scores(rewards, groups)
    assert got[0::2] == pytest.approx(alone[0])
    assert got[1::2] == pytest.approx(alone[1])


def test_masked_positions_are_exactly_zero_even_beside_nan():
    mask = [[0, 1, 1], [0, 1, 0]]
    token_rewards = torch.tensor([[NAN, 0.0, 0.0], [NAN, 0.0, NAN]])
    got = group_norm.compute(inputs([1.0, 0.0], [0, 0], mask, token_rewards=token_rewards)).advantages
    assert got[:, 0].tolist() == [0.0, 0.0]
    assert got[1, 2] == 0.0
    assert torch.isfinite(got).all()


def test_rewards_to_go_with_discount_and_a_kl_penalty():
    # scores (mean only) +-.5 at the last token, gamma .5, penalties -.1 a token:
    # row 0: A_2 = -.1 + .5 = .4, A_1 = -.1 + .5 * .4 = .1, A_0 = -.1 + .5 * .1 = -.05
    got = group_norm.compute(
        inputs([1.0, 0.0], [0, 0], gamma=0.5, group_std=False, token_rewards=torch.full((2, 3), -0.1))
    ).advantages
    assert got[0].tolist() == pytest.approx([-0.05, 0.1, 0.4])


@pytest.mark.parametrize("gamma", [1.0, 1.0 - 1e-7])
def test_a_masked_token_in_the_middle_is_skipped(gamma):
    with_gap = inputs([1.0, 0.0], [0, 0], [[1, 0, 1], [1, 1, 0]], gamma=gamma)
    got = group_norm.compute(with_gap).advantages
    assert got[0].tolist() == pytest.approx([0.7071, 0.0, 0.7071], abs=1e-4)
    assert got[1].tolist() == pytest.approx([-0.7071, -0.7071, 0.0], abs=1e-4)


def test_the_fast_path_of_gamma_one_equals_the_loop():
    torch.manual_seed(0)
    mask = (torch.rand(6, 9) > 0.3).tolist()
    rewards, token_rewards = torch.rand(6).tolist(), torch.randn(6, 9)
    fast, loop = (
        group_norm.compute(
            inputs(rewards, [0] * 3 + [1] * 3, mask, token_rewards=token_rewards, gamma=g)
        ).advantages
        for g in (1.0, 1.0 - 1e-9)
    )
    torch.testing.assert_close(fast, loop, rtol=0, atol=1e-5)


def test_an_empty_response_is_harmless():
    got = group_norm.compute(inputs([1.0, 0.0], [0, 0], [[0, 0, 0], [0, 1, 1]])).advantages
    assert got[0].tolist() == [0.0, 0.0, 0.0]
    assert got[1, 1] == pytest.approx(-0.7071, abs=1e-4)


def test_zero_spread_groups_are_counted():
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, NAN, 1.0])
    assert zero_spread_groups(rewards, torch.tensor([0, 0, 1, 1, 2, 2])) == (2, 3)


def test_group_statistics_are_unbiased():
    stats = group_stats(torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1]))
    assert stats.std.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.0])
    assert stats.size.tolist() == [3, 3, 3, 1]
    assert stats.tied.tolist() == [False, False, False, True]
