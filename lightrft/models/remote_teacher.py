"""A teacher behind SGLang's native `/generate`: it is asked for no new token, only for the input's log-probs.

    {"input_ids": [7, 8, 5, 6], "logprob_start_len": 1, "return_logprob": true, …}
    ─► {"meta_info": {"input_token_logprobs": [[null, 8, null], [-0.1, 5, null], [-0.7, 6, null]]}}

The list starts at `logprob_start_len`, and its first log-prob is always null, so a request starts one token
before the response. One request a row: the server batches by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightrft.errors import ConfigError, RewardError
from lightrft.models.http_client import HttpOptions, JsonClient
from lightrft.types import Experience

FLAG = "--teacher_model_url"
TOKEN_VARIABLE = "LIGHTRFT_TEACHER_TOKEN"
START_PATIENCE = 30.0  # seconds: a wrong URL is found before the models load, not ten minutes later
PROBE = "The answer to 3 + 4 is 7, so return x + 1."
PROBED_SPECIAL_TOKENS = 256
LEADING_AND_TRAILING = 2  # special tokens that a server may put around a text by itself
CLIPPED = 0  # SGLang reports the last id of its vocabulary, and all beyond, as this one


@dataclass(frozen=True)
class _Row:
    """A row to score: its tokens up to the last response token, and where the answer starts."""

    number: int
    token_ids: list[int]
    start: int


class RemoteTeacher:
    """See `Teacher`. `tokenizer` is the policy's."""

    def __init__(
        self, url: str, temperature: float, tokenizer: Any, options: HttpOptions | None = None
    ) -> None:
        check_remote_teacher(temperature)
        self.client = JsonClient(_generate_url(url), FLAG, TOKEN_VARIABLE, options)
        at_start = replace(self.client.options, patience=min(START_PATIENCE, self.client.options.patience))
        self._probe_client = JsonClient(self.client.url, FLAG, TOKEN_VARIABLE, at_start)
        self.tokenizer = tokenizer
        self._last_id = max(tokenizer.get_vocab().values())

    def logprobs(self, experience: Experience) -> Tensor:
        """See `Teacher`. Rows without a response token are not sent.

        Raises:
            RewardError: the server stays down, refuses a row, or answers with something else than a finite
                log-prob of every token that it was sent; the row is named.
        """
        rows = [row for i in range(len(experience)) if (row := _row(experience, i)) is not None]
        replies = self.client.post_all([_payload(row) for row in rows])
        out = torch.zeros(experience.response_mask.shape)
        for row, reply in zip(rows, replies, strict=True):
            out[row.number, row.start + 1 : len(row.token_ids)] = self._read(row, reply)
        return torch.where(experience.response_mask.bool(), out, torch.zeros_like(out))

    def check_vocabulary(self) -> None:
        """Ask the server to tokenize a text, and the policy's special tokens, by itself.

        Raises:
            ConfigError: it does so with other ids than the policy's tokenizer.
            RewardError: it cannot be asked.
        """
        special = sorted(self.tokenizer.get_added_vocab().items(), key=lambda item: item[1])
        texts = [PROBE, "".join(token for token, _ in special[:PROBED_SPECIAL_TOKENS])]
        texts = [text for text in texts if text]
        replies = self._probe_client.post_all([{"text": text, **_scoring(0)} for text in texts])
        for text, reply in zip(texts, replies, strict=True):
            own = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            found = [token_id for _, token_id in _entries(reply, "the vocabulary probe")]
            if not self._contains(found, own):
                raise ConfigError(
                    f"{FLAG} {self.client.url}: the teacher has another vocabulary: {text[:60]!r} begins "
                    f"with the ids {own[:8]} to the policy and {found[:8]} to the teacher. Distillation "
                    "compares tokens by id: serve a teacher of the policy's own model family"
                )

    def _contains(self, found: list[int], own: list[int]) -> bool:
        extra = len(found) - len(own)
        return 0 <= extra <= LEADING_AND_TRAILING and any(
            all(map(self._same, own, found[i : i + len(own)])) for i in range(extra + 1)
        )

    def _same(self, sent: int, reported: int) -> bool:
        return reported == sent or (reported == CLIPPED and sent >= self._last_id)

    def _read(self, row: _Row, reply: Any) -> Tensor:
        """The log-probs of the tokens after `row.start`."""
        where = f"response {row.number} of this rank"
        entries = _entries(reply, where)
        sent = row.token_ids[row.start :]
        if len(entries) != len(sent):
            raise RewardError(
                f"{FLAG}: {where}: {len(entries)} log-probs came back for {len(sent)} tokens, from token "
                f"{row.start} of {len(row.token_ids)} on"
            )
        for token_id, (_, reported) in zip(sent, entries, strict=True):
            if not self._same(token_id, reported):
                raise RewardError(
                    f"{FLAG}: {where}: token {token_id} came back as {reported}: the teacher has another "
                    "vocabulary, or this is the answer to another request"
                )
        logprobs = [logprob for logprob, _ in entries[1:]]
        for offset, logprob in enumerate(logprobs, row.start + 1):
            if not isinstance(logprob, (int, float)) or not math.isfinite(logprob):
                raise RewardError(f"{FLAG}: {where}: the log-prob of token number {offset} is {logprob}")
        return torch.tensor(logprobs, dtype=torch.float32)


def check_remote_teacher(temperature: float) -> None:
    """A server scores its input at temperature 1, whatever the request says.

    Raises:
        ConfigError: the policy samples at another temperature.
    """
    if temperature != 1.0:
        raise ConfigError(
            f"--temperature {temperature:g}: a teacher at {FLAG} gives log-probs at temperature 1, which "
            "cannot be compared: use --temperature 1.0, or load the teacher with --teacher_pretrain"
        )


def _generate_url(url: str) -> str:
    base = url.rstrip("/")
    return base if base.endswith("/generate") else f"{base}/generate"


def _row(experience: Experience, number: int) -> _Row | None:
    positions = experience.response_mask[number].nonzero().flatten().tolist()
    if not positions:
        return None
    token_ids = experience.input_ids[number, : positions[-1] + 1].tolist()
    return _Row(number, token_ids, positions[0] - 1)


def _payload(row: _Row) -> dict[str, Any]:
    return {"input_ids": row.token_ids, **_scoring(row.start)}


def _scoring(start: int) -> dict[str, Any]:
    # Temperature 1 is said aloud: a server that scales its log-probs then gives the same ones.
    sampling = {"max_new_tokens": 0, "temperature": 1.0}
    return {"sampling_params": sampling, "return_logprob": True, "logprob_start_len": start}


def _entries(reply: Any, where: str) -> list[tuple[Any, int]]:
    """(log-prob, token id) of each input token that the reply tells of."""
    try:
        return [(entry[0], int(entry[1])) for entry in reply["meta_info"]["input_token_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RewardError(
            f"{FLAG}: {where}: the answer has no meta_info.input_token_logprobs as SGLang's /generate gives "
            f"them ({type(error).__name__}: {error})"
        ) from error
