"""An experience of three rows of unequal lengths."""

import torch

from lightrft.data.batching import collate
from lightrft.types import Prompt, RewardResult, Rollout

ROWS = (([7, 8, 9], [5, 6]), ([10, 11], [12, 13, 14, 1]), ([20, 21, 22, 23], [24]))


def make_experience(rows=ROWS, excluded=()):
    """Prompt and response ids of each row; rows `excluded` have no reward."""
    rollouts = [
        Rollout(Prompt(i, list(prompt), ""), 0, list(response), "", "stop")
        for i, (prompt, response) in enumerate(rows)
    ]
    rewards = [None if i in excluded else 1.0 for i in range(len(rows))]
    experience = collate(rollouts, RewardResult(rewards), pad_token_id=0)
    assert experience.input_ids.dtype == torch.long
    return experience
