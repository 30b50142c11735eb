"""Dynamic sampling: groups that teach nothing make room for others."""

import pytest
import torch

from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.resample import DynamicSampler, join_groups, split_groups
from lightrft.types import Prompt, RewardResult, Rollout

CPU = torch.device("cpu")


def group(index, rewards):
    """One prompt's samples; the response text holds the reward, for the fake reward to read."""
    return [
        Rollout(Prompt(index, [7], ""), i, [5, 2], str(reward), "stop") for i, reward in enumerate(rewards)
    ]


def score(rollouts):
    rewards = [None if r.text == "None" else float(r.text) for r in rollouts]
    return RewardResult(rewards, {"answer": rewards}, ["ok"] * len(rollouts))


def sampler(batches, rounds=10):
    """Each call of `generate` gives the next of `batches`; asking for more than there are is an error."""
    following = iter(batches)
    return DynamicSampler(lambda: next(following), score, rounds, CPU)


def complete(first, batches, rounds=10):
    metrics = MetricSums()
    rollouts, result = sampler(batches, rounds).complete(first, score(first), metrics)
    return [r.prompt.index for r in rollouts[::2]], result, metrics.reduce()


def test_groups_are_split_by_spread_and_joined_again():
    rollouts = group(0, [1, 0]) + group(1, [1, 1]) + group(2, [0, 1])
    informative, tied = split_groups(rollouts, score(rollouts))
    assert [g.rollouts[0].prompt.index for g in informative] == [0, 2]
    assert [g.rollouts[0].prompt.index for g in tied] == [1]
    joined, result = join_groups(informative + tied)
    assert [r.prompt.index for r in joined] == [0, 0, 2, 2, 1, 1]
    assert result.rewards == [1, 0, 0, 1, 1, 1]
    assert result.parts["answer"] == result.rewards


def test_nothing_is_sampled_where_every_group_teaches():
    first = group(0, [1, 0]) + group(1, [0, 1])
    indices, _, metrics = complete(first, [])
    assert indices == [0, 1]
    assert metrics["sampling/rounds"] == 1


def test_tied_groups_are_replaced_by_later_ones():
    first = group(0, [1, 1]) + group(1, [0, 1])
    second = group(2, [0, 0]) + group(3, [0, 0])
    third = group(4, [1, 0]) + group(5, [1, 0])
    indices, _, metrics = complete(first, [second, third])
    assert indices == [1, 4]  # in the order found; what is beyond the need is dropped
    assert metrics["sampling/rounds"] == 3
    assert metrics["sampling/informative_share"] == pytest.approx(3 / 6)
    assert metrics["sampling/missing_groups"] == 0


def test_after_the_last_round_the_rest_keeps_its_place_and_trains_nothing():
    first = group(0, [1, 1]) + group(1, [0, 1])
    second = group(2, [0, 0]) + group(3, [1, 1])
    indices, result, metrics = complete(first, [second], rounds=2)
    assert indices == [1, 0]
    assert result.rewards == [0, 1, None, None]
    assert metrics["sampling/missing_groups"] == 1


def test_a_failed_sample_does_not_make_a_group_informative():
    first = group(0, [1, None]) + group(1, [0, 1])
    indices, result, _ = complete(first, [], rounds=1)
    assert indices == [1, 0]
    assert result.rewards == [0, 1, None, None]
