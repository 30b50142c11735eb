"""`--pretrain_data`: whole texts for the language-model loss beside the policy's (PTX).

A row is a text, or a chat whose every turn is one: the loss counts all tokens but a row's first.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from lightrft.config.sources import split_sources
from lightrft.data.processors import Messages, TextProcessor
from lightrft.data.prompts import LISTED_PROBLEMS, DataReport
from lightrft.data.rows import ROLES, BadRow
from lightrft.data.sources import Row, RowProblem, read_rows
from lightrft.errors import ConfigError, DataError

# Columns that hold the text or chat, in the order in which they are looked for.
TEXT_KEYS = ("text", "messages", "conversations", "prompt")
CONTINUATION_KEYS = ("completion", "response")  # of a `prompt`


@dataclass(frozen=True)
class TextOptions:
    """What the data flags say."""

    input_key: str | None = None  # a further column to look in, after `TEXT_KEYS`
    split: str = "train"  # of data sets that have several
    strict_data: bool = False  # a bad row is an error


class TextSet(Sequence[list[int]]):
    """The token ids of each text, and the report of how they came about. Kept in 4 bytes a token."""

    def __init__(self, texts: Iterable[Sequence[int]], report: DataReport) -> None:
        self._texts = [array("i", text) for text in texts]
        self.report = report
        self.report.kept = len(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [text.tolist() for text in self._texts[index]]
        return self._texts[index].tolist()


def load_texts(spec: str, tokenizer: Any, max_len: int, options: TextOptions | None = None) -> TextSet:
    """Read and encode all rows of `spec`, in order: files, saved folders and hub names, by commas.

    A plain text gets what the tokenizer puts before a sequence, and its EOS; a chat has the special tokens
    that its template writes. What is longer than `max_len` tokens is cut there, and then has no EOS.

    Raises:
        DataError: a source cannot be read; no row is usable; or a row is bad and `strict_data` is on.
        ConfigError: a row is a chat and the model has no chat template.
    """
    options = options or TextOptions()
    sources = split_sources(spec)
    if not sources:
        raise DataError(
            "--pretrain_data names no data set: give files, saved folders or hub names, by commas"
        )
    report = DataReport(noun="texts")
    texts: list[list[int]] = []
    for source in sources:
        texts += _encoded(read_rows(source, options.split), tokenizer, max_len, options, report)
    if options.strict_data and report.problems:
        listed = "\n".join(f"  {problem}" for problem in report.problems[:LISTED_PROBLEMS])
        raise DataError(f"{spec}: {len(report.problems)} bad rows, and --strict_data is on:\n{listed}")
    if not texts:
        raise DataError(f"{spec}: no text is left: {report}")
    return TextSet(texts, report)


def _encoded(
    rows: Sequence[Row | RowProblem],
    tokenizer: Any,
    max_len: int,
    options: TextOptions,
    report: DataReport,
) -> list[list[int]]:
    """Token ids of the good rows; the others go into the report."""
    report.rows += len(rows)
    report.problems += [row for row in rows if isinstance(row, RowProblem)]
    encoder = _Encoder(tokenizer)
    out = []
    for row in rows:
        if isinstance(row, RowProblem):
            continue
        try:
            ids = encoder.encode(_content(row.values, options))
            if len(ids) < 2 or max_len < 2:
                raise BadRow("nothing to predict", f"{min(len(ids), max_len)} tokens")
        except BadRow as bad:
            report.problems.append(RowProblem(row.source, bad.reason, bad.detail))
            continue
        report.truncated += len(ids) > max_len
        out.append(ids[:max_len])
    return out


class _Encoder:
    """From a text or a chat to token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.processor = TextProcessor(tokenizer)

    def encode(self, content: str | Messages) -> list[int]:
        if isinstance(content, str):
            ids = self._plain(content)
            eos = self.tokenizer.eos_token_id
            return ids if eos is None or ids[-1:] == [eos] else [*ids, eos]
        return self._chat(content)

    def _plain(self, text: str) -> list[int]:
        encoded = self.processor.encode([text])[0]
        if isinstance(encoded, DataError):
            raise BadRow("cannot be encoded", str(encoded))
        return encoded.token_ids

    def _chat(self, messages: Messages) -> list[int]:
        if not self.tokenizer.chat_template:
            raise ConfigError(
                f"--pretrain_data has chats, and the tokenizer of {self.tokenizer.name_or_path} has no chat "
                "template: use a chat model, or plain texts"
            )
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
            return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        except Exception as error:  # the template is a program of the model's authors and may raise anything
            raise BadRow("cannot be encoded", f"the chat template refuses it: {error}") from error


def _content(values: Mapping[str, Any], options: TextOptions) -> str | Messages:
    keys = TEXT_KEYS if options.input_key is None else (*TEXT_KEYS, options.input_key)
    key = next((k for k in keys if values.get(k) is not None), None)
    if key is None:
        raise BadRow("missing key", f"none of {', '.join(keys)}; it has {', '.join(values)}")
    parts = [values[key]]
    if key == "prompt":
        parts += [values[k] for k in CONTINUATION_KEYS if values.get(k) is not None][:1]
    if all(isinstance(part, str) for part in parts):
        if not "".join(parts).strip():
            raise BadRow("empty text")
        return "".join(parts)
    if all(isinstance(part, (list, tuple)) for part in parts):
        return _chat([turn for part in parts for turn in part])
    kinds = " and a ".join(type(part).__name__ for part in parts)
    raise BadRow("unusable text", f"{key}: a row is a text or a list of messages, this is a {kinds}")


def _chat(turns: Sequence[Any]) -> Messages:
    chat = [_turn(turn) for turn in turns]
    if not any(turn["role"] == "assistant" for turn in chat):
        raise BadRow("unusable text", "a chat to learn from has a turn of the assistant")
    return chat


def _turn(turn: Any) -> dict[str, Any]:
    turn = turn if isinstance(turn, Mapping) else {}
    role = turn.get("role") or turn.get("from")
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    if not isinstance(role, str) or not isinstance(content, str):
        raise BadRow("unusable text", "a message is {'role': text, 'content': text}")
    return {"role": ROLES.get(role, role), "content": content}


class TextSampler:
    """Which texts come when, from three numbers: no state to save, and every rank computes the same.

    The draws follow each other through all texts in an order that `(seed, pass)` decides; each text comes
    once in a pass, and a draw may reach into the next one.
    """

    def __init__(self, num_texts: int, seed: int) -> None:
        if num_texts < 1:
            raise DataError("there is no text to draw from")
        self._num_texts = num_texts
        self._seed = seed
        self._order: list[int] = []
        self._ordered_pass: int | None = None

    def draw(self, number: int, count: int) -> list[int]:
        """The rows of draw `number` (from 0) of `count` each, over all ranks."""
        return [self._row(position) for position in range(number * count, (number + 1) * count)]

    def _row(self, position: int) -> int:
        number, index = divmod(position, self._num_texts)
        if self._ordered_pass != number:
            self._order = list(range(self._num_texts))
            random.Random(f"texts/{self._seed}/{number}").shuffle(self._order)
            self._ordered_pass = number
        return self._order[index]


def collate_texts(rows: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """`input_ids`, `attention_mask` (int64) and `loss_mask` (float32), `[B, T]`, right-padded.

    The loss counts every token but a row's first, which nothing predicts, and none of the padding.
    """
    shape = (len(rows), max(len(row) for row in rows))
    input_ids = torch.full(shape, pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.long)
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        attention_mask[i, : len(row)] = 1
    loss_mask = attention_mask.float()
    loss_mask[:, 0] = 0
    return input_ids, attention_mask, loss_mask
