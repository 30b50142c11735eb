"""The order of prompts: complete, reproducible, resumable at every point, the same for any number of
ranks.
"""

import itertools
import random

import pytest

from lightrft.data.sampler import PromptSampler, eval_batches, rank_share
from lightrft.errors import CheckpointError, ConfigError


def test_an_episode_has_each_prompt_once_and_leaves_out_the_partial_batch():
    sampler = PromptSampler(11, 3, seed=0)
    batches = list(sampler)
    assert len(sampler) == len(batches) == 3
    seen = list(itertools.chain(*batches))
    assert len(set(seen)) == 9
    assert set(seen) < set(range(11))
    assert (sampler.episode, sampler.position) == (1, 0)


def test_every_episode_and_every_seed_has_its_own_order():
    sampler = PromptSampler(40, 40, seed=5)
    first, second = sampler.next_batch(), sampler.next_batch()
    other = PromptSampler(40, 40, seed=6).next_batch()
    assert sorted(first) == sorted(second) == sorted(other) == list(range(40))
    assert len({tuple(first), tuple(second), tuple(other)}) == 3
    assert PromptSampler(40, 40, seed=5).next_batch() == first


def test_without_shuffling_rows_come_as_they_are():
    sampler = PromptSampler(5, 2, seed=0, shuffle=False)
    assert [sampler.next_batch() for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_the_global_random_state_neither_matters_nor_changes():
    random.seed(1)
    before = random.getstate()
    order = PromptSampler(20, 20, seed=0).next_batch()
    assert random.getstate() == before
    random.seed(2)
    assert PromptSampler(20, 20, seed=0).next_batch() == order


@pytest.mark.parametrize("steps", range(8))
def test_a_restored_sampler_goes_on_where_it_was_also_at_the_end_of_an_episode(steps):
    uninterrupted = PromptSampler(10, 3, seed=4)
    batches = [uninterrupted.next_batch() for _ in range(9)]
    first = PromptSampler(10, 3, seed=4)
    for _ in range(steps):
        first.next_batch()
    resumed = PromptSampler(10, 3, seed=4)
    resumed.load_state_dict(first.state_dict())
    assert [resumed.next_batch() for _ in range(9 - steps)] == batches[steps:]
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_iterating_after_a_resume_gives_the_rest_of_the_episode():
    sampler = PromptSampler(10, 2, seed=4)
    all_batches = list(PromptSampler(10, 2, seed=4))
    sampler.load_state_dict(sampler.state_dict() | {"position": 3})
    assert list(sampler) == all_batches[3:]
    assert sampler.episode == 1


def test_a_state_of_other_data_names_each_difference():
    state = PromptSampler(10, 2, seed=4).state_dict()
    with pytest.raises(CheckpointError, match=r"num_prompts was 10 and is 12; seed was 4 and is 5"):
        PromptSampler(12, 2, seed=5).load_state_dict(state)


def test_fewer_prompts_than_a_batch_is_an_error_with_the_numbers():
    with pytest.raises(
        ConfigError, match="3 prompts and a batch takes 4: use --rollout_batch_size 3 or less"
    ):
        PromptSampler(3, 4, seed=0)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_rank_shares_partition_a_batch(world):
    batch = list(range(100, 110))
    shares = [rank_share(batch, rank, world) for rank in range(world)]
    assert sorted(itertools.chain(*shares)) == batch
    assert shares[0][0] == 100


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_evaluation_has_every_row_once_and_the_same_number_of_batches_on_each_rank(rows, world, batch_size):
    per_rank = [eval_batches(rows, batch_size, rank, world) for rank in range(world)]
    assert sorted(i for batches in per_rank for batch in batches for i in batch) == list(range(rows))
    assert len({len(batches) for batches in per_rank}) == 1
    assert all(len(batch) <= batch_size for batches in per_rank for batch in batches)
