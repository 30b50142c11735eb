r"""1 where a response thinks first and then answers: `<think>…</think>`, after it a complete, non-empty
`\boxed{…}`.

Only the response is looked at, so a system prompt that shows the format earns nothing. A model whose chat
template itself opens `<think>` leaves the tag out of its response and is not credited.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightrft.rewards.rules._answers import last_boxed
from lightrft.rewards.score import Score

IN_PROCESS = True
NEEDS_REFERENCES = False
PARTS: tuple[str, ...] = ()


def thinks_then_boxes(response: str) -> bool:
    """Whether a `<think>…</think>` block is followed by a complete, non-empty box."""
    opened = response.find("<think>")
    closed = response.find("</think>", opened + len("<think>")) if opened >= 0 else -1
    return closed >= 0 and bool(last_boxed(response[closed:]))


def score(response: str, references: Sequence[str]) -> Score:
    """1 or 0; `references` are not looked at."""
    return Score(float(thinks_then_boxes(response)))
