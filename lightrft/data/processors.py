"""From a prompt as the data has it - a text or a chat - to the token ids that the policy sees.

`Processor` is all that the rest of the program knows; the one for images is in `multimodal.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from lightrft.errors import ConfigError, DataError
from lightrft.types import Prompt

Messages = list[dict[str, Any]]  # [{"role": "user", "content": "…"}, …]
# A text, a chat, or (a tuple of parts) a plain text with pictures in it; see `parts.py`.
Content = str | Messages | tuple[dict[str, Any], ...]

_BATCH = 1000  # texts a tokenizer call: its threads are busy and no copy of the whole set is made


@dataclass(frozen=True)
class Encoded:
    """A prompt, ready for the policy. Example: `Encoded([7, 8], "<u>1+1=<a>")`."""

    token_ids: list[int]
    text: str  # the chat template applied
    multimodal: dict[str, Any] = field(default_factory=dict)  # {} for text


class Processor(Protocol):
    """Encodes prompts and decodes responses."""

    def encode(self, prompts: Sequence[Content]) -> list[Encoded | DataError]:
        """One entry per prompt, in order: a row that cannot be encoded is its error and costs no other row.

        Raises:
            ConfigError: the model has no chat template and a prompt is a chat.
        """

    def truncate(self, encoded: Encoded, max_len: int) -> Encoded:
        """At most `max_len` tokens, the oldest left out. Never called on a prompt with images."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""


class ModelProcessor(Processor, Protocol):
    """A model's own, of its folder."""

    tokenizer: Any

    def features(self, prompt: Prompt) -> dict[str, Tensor]:
        """What the model's forward takes besides token ids, on the CPU; {} for text. See `multimodal.py`."""

    def save_pretrained(self, folder: Path) -> None:
        """Write the files that this processor is loaded from."""


class TextProcessor:
    """A tokenizer and its chat template.

    Special tokens: a chat has those that its template writes and no others; a plain text gets what the
    tokenizer puts before a sequence (BOS, where the model has one), unless it begins with that already, and
    nothing after it: a prompt that ended with EOS would be finished before it is answered.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = self._tokenizer = tokenizer
        self._prefix = _leading_special_ids(tokenizer)

    def encode(self, prompts: Sequence[Content]) -> list[Encoded | DataError]:
        rendered = [self._render(prompt) for prompt in prompts]
        texts = [text for text in rendered if isinstance(text, str)]
        ids = iter(self._tokenize(texts))
        return [
            text if isinstance(text, DataError) else self._encoded(prompt, text, next(ids))
            for prompt, text in zip(prompts, rendered, strict=True)
        ]

    def truncate(self, encoded: Encoded, max_len: int) -> Encoded:
        prefix = self._prefix if self._starts_with_prefix(encoded.token_ids) else []
        tail = encoded.token_ids[len(prefix) :]
        ids = prefix + tail[max(0, len(tail) - max(0, max_len - len(prefix))) :]
        return replace(encoded, token_ids=ids, text=self._tokenizer.decode(ids, skip_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def features(self, prompt: Prompt) -> dict[str, Tensor]:
        return {}

    def save_pretrained(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(folder)

    def _render(self, prompt: Content) -> str | DataError:
        if isinstance(prompt, str):
            return _storable(prompt)
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {self._tokenizer.name_or_path} has no chat template, which "
                "--apply_chat_template and prompts that are lists of messages need: use a chat model, or "
                "plain-text prompts without the flag"
            )
        try:
            text = self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is a program of the model's authors and may raise anything
            return DataError(f"the chat template refuses it: {error}")
        return _storable(text)

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = []
        for start in range(0, len(texts), _BATCH):
            batch = self._tokenizer(texts[start : start + _BATCH], add_special_tokens=False, verbose=False)
            ids += batch["input_ids"]
        return ids

    def prefix_of(self, text: str) -> list[int]:
        """What the tokenizer puts before a plain text by itself; nothing where the text begins with it."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [] if self._starts_with_prefix(ids) else self._prefix

    def _encoded(self, prompt: Content, text: str, ids: list[int]) -> Encoded:
        needs_prefix = isinstance(prompt, str) and not self._starts_with_prefix(ids)
        return Encoded(self._prefix + ids if needs_prefix else ids, text)

    def _starts_with_prefix(self, ids: list[int]) -> bool:
        return ids[: len(self._prefix)] == self._prefix


def _storable(text: str) -> str | DataError:
    """A lone surrogate passes JSON and stops a tokenizer in the middle of its batch."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return DataError(f"character {error.start} is half of a surrogate pair")
    return text


def _leading_special_ids(tokenizer: Any) -> list[int]:
    """The ids that the tokenizer puts before a text by itself."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = [i for i in range(len(full)) if full[i : i + len(plain)] == plain]
    return full[: starts[0]] if starts else []
