"""Masks from positions, group numbers, and the cut into steps."""

import pytest
import torch

from lightrft.data.batching import collate, forward_order, micro_batches, step_slices
from lightrft.types import Prompt, RewardResult, Rollout

PAD = 2


def rollout(prompt_ids, response, sample=0, index=0, finish="stop", logprobs=None):
    return Rollout(Prompt(index, prompt_ids, ""), sample, response, "", finish, logprobs)


def test_the_mask_comes_from_lengths_not_from_ids():
    """pad = eos = 2: the end token is trained, the padding behind it is not."""
    batch = collate(
        [rollout([7], [5, 6, 2]), rollout([7, 8], [5, 6, 2, 4, 4])], RewardResult([1.0, 0.0]), PAD
    )
    assert batch.input_ids[0].tolist() == [7, 5, 6, 2, 2, 2, 2]
    assert batch.response_mask[0].tolist() == [0, 1, 1, 1, 0, 0, 0]
    assert batch.attention_mask[0].tolist() == [1, 1, 1, 1, 0, 0, 0]


def test_a_pad_id_inside_a_response_is_a_token_like_any_other():
    batch = collate([rollout([2, 7], [2, 2, 5], finish="length")], RewardResult([1.0]), PAD)
    assert batch.response_mask[0].tolist() == [0, 0, 1, 1, 1]
    assert batch.attention_mask[0].tolist() == [1, 1, 1, 1, 1]


def test_an_excluded_row_keeps_its_place_and_trains_nothing():
    batch = collate([rollout([7], [5, 2]), rollout([7], [6, 2], 1)], RewardResult([None, 1.0]), PAD)
    assert batch.response_mask.tolist() == [[0, 0, 0], [0, 1, 1]]
    assert torch.isnan(batch.rewards[0])


def test_engine_logprobs_stand_at_their_tokens_and_are_nan_where_unknown():
    batch = collate(
        [rollout([7, 8], [5, 2], logprobs=[-0.5, -0.25]), rollout([7], [5])], RewardResult([1.0, 1.0]), PAD
    )
    assert batch.rollout_logprobs[0, 2:].tolist() == [-0.5, -0.25]
    assert batch.rollout_logprobs[0, :2].isnan().all()
    assert batch.rollout_logprobs[1].isnan().all()


def test_the_same_prompt_twice_in_a_step_makes_two_groups():
    rollouts = [rollout([7], [5], s, index) for index in (4, 4, 9) for s in range(2)]
    assert collate(rollouts, RewardResult([0.0] * 6), PAD).group_ids.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_optimizer_steps_see_the_same_prompts_on_any_number_of_ranks(world):
    """Strided shares: the union of every rank's k-th slice is the k-th part of the rollout."""
    prompts, n, train_batch = list(range(16)), 2, 8
    steps: dict[int, set] = {}
    for rank in range(world):
        local = [p for p in prompts[rank::world] for _ in range(n)]
        for k, rows in enumerate(step_slices(len(local), train_batch // world)):
            steps.setdefault(k, set()).update(local[i] for i in rows)
    assert steps == {k: set(range(4 * k, 4 * k + 4)) for k in range(4)}


def test_micro_batches_keep_every_row_once():
    assert list(micro_batches([5, 3, 8, 1, 9], 2)) == [[5, 3], [8, 1], [9]]


def test_forward_order_is_longest_first_and_stable():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    assert forward_order(mask) == [1, 0, 2, 3]
