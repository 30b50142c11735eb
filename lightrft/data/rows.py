"""What a row means: which column is its prompt, as text or chat, which its references and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightrft.data.parts import BadRow, MediaOptions, bind, join_text, row_media
from lightrft.data.processors import Content, Messages
from lightrft.data.sources import Row
from lightrft.errors import ConfigError
from lightrft.types import Prompt

# A flag left at its default looks in these columns, in this order; any other value of it names one column.
INPUT_KEYS = ("input", "prompt", "question", "problem")
REFERENCE_KEYS = ("reference", "reward_model.ground_truth", "ground_truth", "answer")
LABEL_KEYS = ("label",)
# Roles of another common way to write chats: {"from": "human", "value": "…"}.
ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class PromptOptions:
    """What the data flags say. A key may be a path into nested columns: `reward_model.ground_truth`.

    A key at its default may be missing where a row can do without it; one that was given may not.
    """

    input_key: str = INPUT_KEYS[0]
    reference_key: str = REFERENCE_KEYS[0]
    label_key: str = LABEL_KEYS[0]
    apply_chat_template: bool = False  # text prompts become a user's message; chats always use the template
    system_prompt: str | None = None  # first message of chats that bring none
    input_template: str | None = None  # `{}` stands for the user's text
    prompt_max_len: int = 2048  # tokens
    truncate_prompts: bool = False  # cut long prompts on the left instead of dropping them
    strict_data: bool = False  # a bad row is an error
    split: str = "train"  # of data sets that have several
    data_probs: tuple[float, ...] | None = None  # one per source: how often each is drawn from
    seed: int = 0  # of the mixture
    media: MediaOptions | None = None  # of a model that sees; None: rows are text

    def __post_init__(self) -> None:
        if self.input_template is not None and "{}" not in self.input_template:
            raise ConfigError(
                f"--input_template {self.input_template!r} must contain {{}}, where the prompt goes"
            )


def draft(row: Row, options: PromptOptions) -> tuple[Prompt, Content]:
    """The prompt without its encoding, and what to encode.

    Raises:
        BadRow: the row has no usable prompt, reference or label.
        ConfigError: the flags do not fit this kind of prompt.
    """
    content = _content(row.values, options)
    label = _found(row.values, options.label_key, LABEL_KEYS, "--label_key")
    prompt = Prompt(
        index=-1,  # numbered when the set is complete
        token_ids=[],
        text="",
        references=_references(row.values, options.reference_key),
        label=None if label is None else str(label),
        source=row.source,
        messages=content if isinstance(content, list) else None,
    )
    return prompt, content if options.media is None else _with_media(row, content, options.media)


def _with_media(row: Row, content: str | Messages, media: MediaOptions) -> Content:
    """`content` with the row's pictures in their places; paths are relative to the folder of its file."""
    source = Path(row.source.rpartition(":")[0])
    folder = source if source.is_dir() else source.parent
    found = row_media(row.values, media, folder)
    if isinstance(content, str):
        bound = bind([content], found, media, folder)[0]
        return bound if isinstance(bound, str) else tuple(bound)
    contents = bind([message["content"] for message in content], found, media, folder)
    return [{**message, "content": c} for message, c in zip(content, contents, strict=True)]


def _content(values: Mapping[str, Any], options: PromptOptions) -> str | Messages:
    value = _found(values, options.input_key, INPUT_KEYS, "--input_key")
    if value is None:
        keys = ", ".join(INPUT_KEYS)
        raise BadRow("missing key", f"none of {keys} (--input_key); it has {', '.join(values)}")
    if isinstance(value, str) and not value.strip():
        raise BadRow("empty prompt")
    if isinstance(value, str) and not options.apply_chat_template:
        if options.system_prompt is not None:
            raise ConfigError(
                "--system_prompt has no place in a plain-text prompt: add --apply_chat_template, or write "
                "the text into --input_template"
            )
        return _templated(value, options)
    chat = _messages([{"role": "user", "content": value}] if isinstance(value, str) else value, options)
    chat[-1]["content"] = _templated(chat[-1]["content"], options)
    if options.system_prompt is not None and chat[0]["role"] != "system":
        chat.insert(0, {"role": "system", "content": options.system_prompt})
    return chat


def _templated(content: Any, options: PromptOptions) -> Any:
    if options.input_template is None:
        return content
    if isinstance(content, str):  # not str.format: braces are common in mathematics
        return options.input_template.replace("{}", content)
    before, _, after = options.input_template.partition("{}")
    return [{"type": "text", "text": before}, *content, {"type": "text", "text": after}]


def _lookup(values: Mapping[str, Any], key: str) -> Any:
    """The column `key`, or else the nested one that `a.b` names; None where there is neither."""
    if key in values:
        return values[key]
    found: Any = values
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _plain(value: Any) -> Any:
    """Arrays (parquet gives lists as numpy arrays) and 0-d values as what Python has for them."""
    return value.tolist() if hasattr(value, "tolist") else value


def _found(values: Mapping[str, Any], key: str, fallbacks: Sequence[str], flag: str) -> Any:
    """The value under `key`; at its default, the first that `fallbacks` have, or None."""
    keys = fallbacks if key == fallbacks[0] else (key,)
    value = next((found for k in keys if (found := _lookup(values, k)) is not None), None)
    if value is None and keys is not fallbacks:
        raise BadRow("missing key", f"no {key!r} ({flag}); it has {', '.join(values)}")
    return _plain(value)


def _messages(value: Any, options: PromptOptions) -> Messages:
    if not isinstance(value, (list, tuple)):
        raise BadRow(
            "unusable prompt", f"a prompt is a text or a list of messages, not a {type(value).__name__}"
        )
    chat = [_message(item, options.media is not None) for item in value]
    if not chat or chat[-1]["role"] == "assistant":
        raise BadRow(
            "unusable prompt", "a chat ends with what the policy is to answer" if chat else "no message"
        )
    last = chat[-1]["content"]
    if not (last.strip() if isinstance(last, str) else last):
        raise BadRow("empty prompt")
    return chat


def _message(item: Any, with_parts: bool) -> dict[str, Any]:
    item = item if isinstance(item, Mapping) else {}
    role = item.get("role") or item.get("from")
    content = item.get("content") if item.get("content") is not None else item.get("value")
    content = _plain(content)
    if isinstance(content, list | tuple) and not with_parts:
        content = join_text(content)
    if not isinstance(role, str) or not isinstance(content, str | list | tuple):
        raise BadRow("unusable prompt", "a message is {'role': text, 'content': text}")
    return {"role": ROLES.get(role, role), "content": content}


def own_answers(row: Row, options: PromptOptions) -> list[str]:
    """What the reference column holds, as the data has it: of a GSM8K row the whole solution.

    Raises:
        BadRow: the column that was named is not there, or holds something else than texts and numbers.
    """
    return [
        answer if isinstance(answer, str) else _reference(answer)
        for answer in _answers(row.values, options.reference_key)
    ]


def _references(values: Mapping[str, Any], key: str) -> list[str]:
    return [_reference(answer) for answer in _answers(values, key)]


def _answers(values: Mapping[str, Any], key: str) -> list[Any]:
    found = _found(values, key, REFERENCE_KEYS, "--reference_key")
    if isinstance(found, (list, tuple)):
        return list(found)
    return [] if found is None else [found]


def _reference(answer: Any) -> str:
    """A text; of a GSM8K solution (`… #### 42`) its answer; a number as people write it: 145 for 145.0."""
    if isinstance(answer, str):
        return answer.rpartition("####")[2].strip()
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    if isinstance(answer, (int, float)):
        return str(answer)
    raise BadRow("unusable reference", f"an answer is a text or a number, not a {type(answer).__name__}")
