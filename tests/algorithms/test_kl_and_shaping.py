"""KL estimators, whitening, clipping, the learning rate."""

import math

import pytest
import torch

from lightrft.algorithms.kl import AdaptiveKLController, FixedKLController, kl_estimate
from lightrft.algorithms.schedule import learning_rate
from lightrft.algorithms.shaping import RunningMoments, clip_symmetric, overlong_penalty, whiten

NAN = float("nan")


@pytest.mark.parametrize(
    ("logprob", "ref", "expected"),
    [
        # x = .5: x, x^2 / 2, exp(-.5) - 1 + .5
        (-1.0, -1.5, {"k1": 0.5, "k2": 0.125, "k3": 0.106531}),
        # x = -.5: exp(.5) - 1 - .5
        (-1.5, -1.0, {"k1": -0.5, "k2": 0.125, "k3": 0.148721}),
        (-0.3, -0.3, {"k1": 0.0, "k2": 0.0, "k3": 0.0}),
    ],
)
def test_estimators(logprob, ref, expected):
    for name, value in expected.items():
        got = kl_estimate(torch.tensor(logprob), torch.tensor(ref), name)
        assert float(got) == pytest.approx(value, abs=1e-6)


def test_k3_stays_finite_far_away():
    assert torch.isfinite(kl_estimate(torch.tensor(-200.0), torch.tensor(0.0), "k3"))


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_estimators_are_unbiased(name):
    """The mean over the policy's own distribution is the KL itself."""
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((p * (p / q).log()).sum())
    assert float((p * kl_estimate(p.log(), q.log(), name)).sum()) == pytest.approx(exact, abs=1e-6)


def test_k2_as_a_loss_has_the_gradient_of_the_kl():
    logits = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    q = torch.tensor([0.4, 0.4, 0.2])
    p = logits.softmax(0)
    (exact,) = torch.autograd.grad((p * (p.log() - q.log())).sum(), logits)
    logp = logits.log_softmax(0)
    (got,) = torch.autograd.grad((p.detach() * kl_estimate(logp, q.log(), "k2")).sum(), logits)
    torch.testing.assert_close(got, exact)


def test_whitening_has_mean_zero_and_variance_one_over_tokens():
    # tokens 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    x = torch.tensor([[9.0, 1.0, 2.0], [float("nan"), 3.0, 6.0]])
    mask = torch.tensor([[0.0, 1, 1], [0, 1, 1]])
    got = whiten(x, mask, lambda t: t)
    root = math.sqrt(3.5)
    expected = [[0, -2 / root, -1 / root], [0, 0, 3 / root]]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=1e-6)


def test_whitening_sums_over_ranks():
    """Two halves that see each other's sums equal the whole."""
    x, mask = torch.randn(4, 5), torch.ones(4, 5)
    halves = [x[:2], x[2:]]
    sums = []

    def record(t):
        sums.append(t)
        return t

    whole = whiten(x, mask, record)
    calls = iter(sums)
    part = whiten(halves[0], mask[:2], lambda t: next(calls))
    torch.testing.assert_close(part, whole[:2])


def test_whitening_an_equal_batch_gives_zero():
    assert whiten(torch.full((2, 3), 0.7), torch.ones(2, 3), lambda t: t).abs().max() < 1e-3


def test_clip():
    x = torch.tensor([-3.0, 0.5, 2.0])
    assert clip_symmetric(x, 1.0).tolist() == [-1.0, 0.5, 1.0]
    assert clip_symmetric(x, 0.0).tolist() == x.tolist()
    assert math.isnan(float(clip_symmetric(torch.tensor(float("nan")), 1.0)))


def test_warm_up_reaches_the_peak_and_never_starts_at_zero():
    rates = [learning_rate(s, 1.0, 3, 100, "constant") for s in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decay_ends_at_a_tenth(schedule):
    assert learning_rate(10, 2.0, 10, 110, schedule) == pytest.approx(2.0)
    assert learning_rate(60, 2.0, 10, 110, schedule) == pytest.approx(2.0 * 0.55)  # half way
    assert learning_rate(110, 2.0, 10, 110, schedule) == pytest.approx(0.2)
    assert learning_rate(10**6, 2.0, 10, 110, schedule) == pytest.approx(0.2)


def test_a_schedule_of_length_zero_is_harmless():
    assert learning_rate(0, 1.0, 0, 0, "linear") > 0


# --- Controllers ---


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.2, 0.00100512),  # .2 / .1 - 1 = 1, clipped to .2: x (1 + .2 * 256 / 10000)
        (0.05, 0.00099488),  # -.5, clipped to -.2
        (0.11, 0.00100256),  # .1, inside: x (1 + .1 * .0256)
        (0.1, 0.001),
        (NAN, 0.001),
    ],
)
def test_the_adaptive_controller(kl, expected):
    controller = AdaptiveKLController(0.001, target=0.1, horizon=10000)
    controller.update(kl, 256)
    assert controller.coef == pytest.approx(expected, rel=1e-9)


def test_the_adaptive_controller_moves_by_a_fifth_at_most():
    controller = AdaptiveKLController(1.0, target=0.1, horizon=100)
    controller.update(0.0, 10**6)
    assert controller.coef == pytest.approx(0.8)


def test_controllers_go_on_where_they_stopped():
    first, second = (AdaptiveKLController(c, target=0.1) for c in (0.001, 0.7))
    first.update(0.2, 256)
    second.load_state_dict(first.state_dict())
    assert second.coef == first.coef
    fixed = FixedKLController(0.3)
    fixed.update(5.0, 10**6)
    assert fixed.coef == 0.3


# --- Overlong ---


def test_overlong_penalty():
    # expected 20 - 4 = 16: 17 -> -1/4, 18 -> -2/4, 20 -> -4/4
    got = overlong_penalty(torch.tensor([0, 15, 16, 17, 18, 20]), 20, 4, 1.0)
    assert got.tolist() == [0.0, 0.0, 0.0, -0.25, -0.5, -1.0]


def test_overlong_factor():
    assert overlong_penalty(torch.tensor([17, 20]), 20, 4, 0.5).tolist() == [-0.125, -0.5]


# --- Running moments ---


def alone(t):
    return t


def test_moments_merged_in_pieces_equal_those_of_all_at_once():
    values = 1e4 + torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pieces, once = RunningMoments(), RunningMoments()
    for piece in values.split([1, 7, 2, 50]):
        pieces.update(piece, alone)
    once.update(values, alone)
    assert pieces.mean == pytest.approx(float(values.mean()), rel=1e-12)
    assert pieces.m2 == pytest.approx(once.m2, rel=1e-6)
    assert pieces.m2 / 59 == pytest.approx(float(values.var()), rel=1e-6)  # unbiased


def test_moments_leave_out_excluded_rows_and_empty_steps():
    moments = RunningMoments()
    moments.update(torch.tensor([1.0, NAN, 3.0]), alone)
    moments.update(torch.tensor([NAN]), alone)
    assert (moments.count, moments.mean, moments.m2) == (2.0, 2.0, 2.0)


def test_moments_are_those_of_all_ranks():
    """The other rank holds 3 and 6: mean 3 of all four, squared deviations 4 + 1 + 0 + 9."""
    own_then_all = iter([([2.0, 3.0], [4.0, 12.0]), (5.0, 14.0)])

    def reduce_sum(own):
        expected, total = (torch.tensor(x, dtype=torch.float64) for x in next(own_then_all))
        torch.testing.assert_close(own, expected)
        return total

    moments = RunningMoments()
    moments.update(torch.tensor([1.0, 2.0]), reduce_sum)
    assert (moments.count, moments.mean, moments.m2) == (4.0, 3.0, 14.0)


def test_normalising_divides_by_the_running_std():
    # 1, 3: mean 2, unbiased std sqrt(2); the step itself is part of it
    moments, values = RunningMoments(), torch.tensor([1.0, 3.0, NAN])
    moments.update(values, alone)
    root = math.sqrt(2)
    assert moments.normalise(values, False).tolist()[:2] == pytest.approx([1 / root, 3 / root])
    assert moments.normalise(values, True).tolist()[:2] == pytest.approx([-1 / root, 1 / root])
    assert math.isnan(moments.normalise(values, True)[2])


@pytest.mark.parametrize("value", [0.0, 0.7, 1e6])
def test_normalising_equal_rewards_divides_by_nothing(value):
    moments, values = RunningMoments(), torch.full((5,), value)
    moments.update(values, alone)
    assert moments.normalise(values, False).tolist() == values.tolist()
    assert moments.normalise(values, True).tolist() == pytest.approx([0.0] * 5, abs=1e-6)


def test_moments_go_on_where_they_stopped():
    first, second = RunningMoments(), RunningMoments()
    first.update(torch.tensor([1.0, 2.0, 6.0]), alone)
    second.load_state_dict(first.state_dict())
    for moments in (first, second):
        moments.update(torch.tensor([0.5]), alone)
    assert second.state_dict() == first.state_dict()
    assert first.count == 4.0
