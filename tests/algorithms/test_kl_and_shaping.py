"""KL estimators, whitening, clipping, the learning rate."""

import math

import pytest
import torch

from lightrft.algorithms.kl import kl_estimate
from lightrft.algorithms.schedule import learning_rate
from lightrft.algorithms.shaping import clip_symmetric, whiten


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
