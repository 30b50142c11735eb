"""The teacher of on-policy distillation: how likely another model finds the tokens that the policy chose."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lightrft.errors import ConfigError
from lightrft.models.policy import Policy
from lightrft.models.scoring import score_tokens
from lightrft.types import Experience

SHOWN_DIFFERENCES = 3


class Teacher(Protocol):
    """Log-probs of the experience's response tokens by the teacher."""

    def logprobs(self, experience: Experience) -> Tensor:
        """`[B, T]` float32 on the CPU, aligned with `input_ids`; 0 where `response_mask` is 0.

        Taken at the temperature that the policy samples at, so that teacher and policy are compared on the
        distribution that the responses come from.
        """


class LocalTeacher:
    """A frozen model in this process. Its temperature is the policy's sampling temperature."""

    def __init__(self, policy: Policy, micro_batch_size: int, device: torch.device | str) -> None:
        self.policy = policy
        self.micro_batch_size = micro_batch_size
        self.device = device

    def logprobs(self, experience: Experience) -> Tensor:
        """See `Teacher`.

        Raises:
            ConfigError: a token beyond the teacher's embedding, which a GPU would answer with a dead context.
        """
        size = self.policy.model.config.get_text_config().vocab_size
        largest = int(experience.input_ids.max())
        if largest >= size:
            raise ConfigError(
                f"--teacher_pretrain: the policy sampled token {largest}, and the teacher's vocabulary ends "
                f"at {size - 1}: use a teacher of the policy's own model family"
            )

        def score(part: Experience) -> Tensor:
            return self.policy(
                part.input_ids,
                part.attention_mask,
                part.response_mask,
                position_ids=part.position_ids,
                multimodal=part.multimodal,
            ).logprobs

        return score_tokens(score, experience, self.micro_batch_size, self.device)


def check_vocabulary(tokenizer: Any, teacher_tokenizer: Any, flag: str) -> None:
    """Every id that the policy's tokenizer knows is the same token to the teacher.

    Log-probs are compared by token id, which means nothing between two vocabularies. The teacher may know
    more tokens: the policy never emits them. Rows that only pad an embedding are no tokens on either side.

    Raises:
        ConfigError: the vocabularies differ; the first few differences are named with both ids.
    """
    own = _tokens_by_id(tokenizer)
    teacher_ids = teacher_tokenizer.get_vocab()
    teacher_tokens = _tokens_by_id(teacher_tokenizer)
    differences = [(i, token) for i, token in own.items() if teacher_tokens.get(i) != token]
    if not differences:
        return
    shown = "; ".join(
        f"{token!r} is {i} and {teacher_ids.get(token, 'missing')}, where {i} is "
        f"{repr(teacher_tokens[i]) if i in teacher_tokens else 'no token'}"
        for i, token in differences[:SHOWN_DIFFERENCES]
    )
    raise ConfigError(
        f"{flag} {teacher_tokenizer.name_or_path}: {len(differences)} of the policy's {len(own)} tokens are "
        f"other tokens to this teacher (id of the policy and of the teacher): {shown}. Distillation compares "
        "tokens by id: use a teacher of the policy's own model family"
    )


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    """All tokens, added ones included, by ascending id."""
    return dict(sorted((i, token) for token, i in tokenizer.get_vocab().items()))
