"""Ranks that share an engine, whose log-probs are asked for, and generators that are left alone."""

import numpy as np
import pytest
import torch

from lightrft.rollout.groups import SAMPLED_SHARE, EngineGroup, wants_logprobs
from lightrft.rollout.process import advice, isolated_rng


def test_a_group_of_one_keeps_to_itself():
    group = EngineGroup(1)
    assert (group.index, group.position, group.is_leader) == (0, 0, True)
    assert group.gather("x") == ["x"]


@pytest.mark.parametrize("num_prompts", [0, 1, 5, 16, 100])
def test_all_and_none_are_what_they_say(num_prompts):
    assert wants_logprobs("all", num_prompts, 3) == [True] * num_prompts
    assert wants_logprobs("none", num_prompts, 3) == [False] * num_prompts


@pytest.mark.parametrize("num_prompts", [1, 2, 15, 16, 17, 128, 1000])
@pytest.mark.parametrize("seed", [0, 1, 17, 2**62 + 5])
def test_a_sample_is_small_and_never_empty(num_prompts, seed):
    chosen = sum(wants_logprobs("sample", num_prompts, seed))
    assert 1 <= chosen <= -(-num_prompts // min(SAMPLED_SHARE, num_prompts))


def test_a_sample_moves_with_the_seed():
    chosen = {tuple(wants_logprobs("sample", 64, seed)) for seed in range(16)}
    assert len(chosen) == SAMPLED_SHARE


def test_draws_follow_the_seed_and_the_generators_come_back():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state()
    drawn = []
    for seed in (5, 5, 6):
        with isolated_rng(seed, torch.device("cpu")):
            drawn.append((float(torch.rand(())), float(np.random.rand())))
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))  # torch's and numpy's
    assert torch.equal(before, torch.get_rng_state())
    expected = np.random.RandomState(3).rand()
    assert np.random.rand() == expected


def test_the_generators_come_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"), isolated_rng(5, torch.device("cpu")):
        raise RuntimeError("inside")
    assert torch.equal(before, torch.get_rng_state())


def test_what_memory_failures_advise():
    said = advice(RuntimeError("CUDA out of memory.\n Tried to allocate 2 GiB"))
    assert said.startswith("CUDA out of memory. Tried to allocate 2 GiB. To fit:")
    assert all(flag in said for flag in ("--engine_mem_util", "--engine_max_num_seqs", "--engine_type hf"))
    assert advice(ValueError("head size 16 is odd")) == "head size 16 is odd"
