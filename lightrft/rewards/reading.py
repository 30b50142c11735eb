"""What a reward model reads of a rollout: the policy's own token ids, or the text in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightrft.data.processors import TextProcessor
from lightrft.errors import ConfigError, DataError
from lightrft.types import Prompt, Rollout


class Reader:
    """Rollouts as token ids of a reward model.

    Where every token of the policy is the same token to the reward model, and it has no chat template of its
    own, it gets the very ids of prompt and response. Otherwise the text is encoded anew: a chat by the reward
    model's template, with the response as the assistant's message; a plain text as it stands, followed by the
    reward model's end token where the response has ended by itself.
    """

    def __init__(self, policy_tokenizer: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plain = TextProcessor(tokenizer)
        same_tokens = _same_tokens(policy_tokenizer, tokenizer)
        template = tokenizer.chat_template
        self._reuses_chats = same_tokens and template in (None, policy_tokenizer.chat_template)
        prefix = TextProcessor(policy_tokenizer).prefix_of("")
        self._reuses_texts = same_tokens and self._plain.prefix_of("") == prefix

    def __call__(self, rollouts: Sequence[Rollout]) -> list[list[int] | DataError]:
        """One entry per rollout, in their order: what cannot be encoded is its error and costs no other."""
        return [self._read(rollout) for rollout in rollouts]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raises ConfigError where a prompt is a chat that can neither be reused nor written anew."""
        chat = next((prompt for prompt in prompts if prompt.messages is not None), None)
        if chat is not None and not self._reuses_chats and not self._tokenizer.chat_template:
            raise ConfigError(
                f"--reward_pretrain {self._tokenizer.name_or_path}: its tokens are not the policy's and it "
                f"has no chat template, so it cannot read the chat of {chat.source}: use a reward model of "
                "the policy's family or one with a chat template, or plain-text prompts"
            )

    def _read(self, rollout: Rollout) -> list[int] | DataError:
        prompt = rollout.prompt
        if self._reuses_texts if prompt.messages is None else self._reuses_chats:
            return [*prompt.token_ids, *rollout.token_ids]
        if prompt.messages is None:
            return self._text(rollout)
        chat = [*prompt.messages, {"role": "assistant", "content": rollout.text}]
        try:
            return self._ids(self._tokenizer.apply_chat_template(chat, tokenize=False))
        except Exception as error:  # the template is a program of the model's authors and may raise anything
            return DataError(f"the chat template refuses it: {error}")

    def _text(self, rollout: Rollout) -> list[int]:
        text = rollout.prompt.text + rollout.text
        end = [int(self._tokenizer.eos_token_id)] if rollout.finish_reason == "stop" else []
        return [*self._plain.prefix_of(text), *self._ids(text), *end]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def _same_tokens(policy_tokenizer: Any, tokenizer: Any) -> bool:
    """Whether every id that the policy's tokenizer knows is the same token to `tokenizer`."""
    theirs = tokenizer.get_vocab()
    return all(theirs.get(token) == i for token, i in policy_tokenizer.get_vocab().items())
