"""What mutations of the algorithms found untested."""

import torch

from lightrft.algorithms.filtering import high_entropy_mask


def test_a_prompt_token_is_never_kept_however_high_its_entropy():
    entropy = torch.tensor([[9.0, 0.1, 2.0], [float("nan"), 3.0, 1.0]])
    mask = torch.tensor([[0.0, 1, 1], [0, 1, 1]])
    assert high_entropy_mask(entropy, mask, 1.5).tolist() == [[0, 0, 1], [0, 1, 0]]
