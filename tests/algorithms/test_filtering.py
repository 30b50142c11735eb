"""Which tokens and groups are trained on: against sorting, on one rank and on two."""

import math
import threading

import pytest
import torch

from lightrft.algorithms.filtering import entropy_threshold, high_entropy_mask, informative_groups

NAN = float("nan")


def alone(t):
    return t


def kept(entropy, mask, ratio):
    threshold = entropy_threshold(entropy, mask, ratio, alone, alone)
    return high_entropy_mask(entropy, mask, threshold)


def by_sorting(entropy, mask, ratio):
    """The k highest response tokens, k being the share rounded up."""
    tokens = entropy[mask.bool()].sort(descending=True).values
    count = math.ceil(ratio * len(tokens) - 1e-9)
    return ((entropy >= tokens[count - 1]) & mask.bool()).float(), count


def batch(seed, rows=6, width=20):
    generator = torch.Generator().manual_seed(seed)
    entropy = torch.rand(rows, width, generator=generator) ** 4 * 3
    mask = (torch.rand(rows, width, generator=generator) < 0.7).float()
    beside = [NAN, 99.0, 0.0][seed % 3]  # a prompt's own entropy must not count, however high
    return torch.where(mask.bool(), entropy, torch.full_like(entropy, beside)), mask


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ratio", [0.01, 0.07, 0.2, 0.5, 0.9, 1.0])
def test_the_top_share_is_that_of_sorting(ratio, seed):
    entropy, mask = batch(seed)
    expected, count = by_sorting(entropy, mask, ratio)
    got = kept(entropy, mask, ratio)
    assert torch.equal(got, expected)
    assert got.sum() == count


def test_a_share_is_not_rounded_up_by_floating_point():
    # .07 * 100 is 7.000000000000001
    entropy = torch.arange(100.0).reshape(5, 20)
    assert kept(entropy, torch.ones(5, 20), 0.07).sum() == 7


def test_tied_tokens_stay_together():
    entropy = torch.tensor([[1.0, 1.0, 1.0, 0.5]])
    assert kept(entropy, torch.ones(1, 4), 0.25).tolist() == [[1.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_equal_entropies_are_all_kept(value):
    assert kept(torch.full((2, 3), value), torch.ones(2, 3), 0.2).sum() == 6


def test_a_certain_token_a_little_below_zero_counts_as_zero():
    entropy = torch.tensor([[-1e-8, 0.5, 0.0, -1e-8]])
    assert kept(entropy, torch.ones(1, 4), 1.0).tolist() == [[1.0] * 4]
    assert kept(entropy, torch.ones(1, 4), 0.25).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_a_batch_without_a_token_keeps_none():
    assert kept(torch.full((2, 3), NAN), torch.zeros(2, 3), 0.2).tolist() == [[0.0] * 3] * 2


class Ranks:
    """All-reduce between threads."""

    def __init__(self, count):
        self.barrier, self.parts = threading.Barrier(count, timeout=20), [None] * count

    def reducer(self, rank, combine):
        def reduce(own):
            self.parts[rank] = own.clone()
            self.barrier.wait()
            result = combine(torch.stack(list(self.parts)))
            self.barrier.wait()
            return result

        return reduce

    def run(self, work):
        results = [None] * len(self.parts)

        def body(rank):
            both = [self.reducer(rank, c) for c in (lambda x: x.sum(0), lambda x: x.amax(0))]
            results[rank] = work(rank, *both)

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.mark.parametrize("cut", [3, 1, 0])  # the last leaves one rank without a row
def test_two_ranks_choose_the_tokens_of_the_whole(cut):
    entropy, mask = batch(5)
    parts = [(entropy[:cut], mask[:cut]), (entropy[cut:], mask[cut:])]

    def work(rank, reduce_sum, reduce_max):
        own, own_mask = parts[rank]
        return high_entropy_mask(own, own_mask, entropy_threshold(own, own_mask, 0.2, reduce_sum, reduce_max))

    assert torch.equal(torch.cat(Ranks(2).run(work)), by_sorting(entropy, mask, 0.2)[0])


def test_informative_groups():
    # group 0 differs, 1 is tied, 2 has one survivor, 3 has none, 4 is close but differs
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.5, NAN, 1.0, NAN, NAN, 1.0, 1.001])
    groups = torch.arange(5).repeat_interleave(2)
    assert informative_groups(rewards, groups).tolist() == [True] * 2 + [False] * 6 + [True] * 2


def test_an_excluded_row_belongs_to_its_groups_verdict():
    assert informative_groups(torch.tensor([1.0, NAN, 0.0]), torch.zeros(3, dtype=torch.long)).all()
