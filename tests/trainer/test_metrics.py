"""Sums and counts, divided once."""

import torch

from lightrft.trainer.metrics import MetricSums


def test_means_are_weighted_by_their_counts():
    metrics = MetricSums()
    metrics.add("loss", torch.tensor(6.0), torch.tensor(2.0))
    metrics.add("loss", 3.0, 1)
    assert metrics.reduce() == {"loss": 3.0}


def test_totals_maxima_and_merging():
    metrics, other = MetricSums(), MetricSums()
    metrics.add_total("rows", 4)
    metrics.add_max("gap", 0.1)
    other.add_total("rows", 1)
    other.add_max("gap", torch.tensor(0.5))
    other.add("x", 1.0)
    metrics.merge(other)
    assert metrics.reduce() == {"rows": 5.0, "gap": 0.5, "x": 1.0}


def test_a_mean_over_nothing_is_left_out():
    metrics = MetricSums()
    metrics.add("empty", 0.0, 0)
    assert metrics.reduce() == {}


def test_gradients_are_not_kept():
    metrics = MetricSums()
    x = torch.tensor(2.0, requires_grad=True)
    metrics.add("x", x * 3)
    assert metrics.reduce() == {"x": 6.0}
    assert metrics._sums["x"][0][0].requires_grad is False
