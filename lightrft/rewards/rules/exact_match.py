"""1 where the response is one of the references, letter by letter.

Space at both ends is dropped and any run of white space counts as one blank; case and punctuation count. An
empty response is "unparsed".
"""

from __future__ import annotations

from collections.abc import Sequence

from lightrft.rewards.score import Score

IN_PROCESS = True
NEEDS_REFERENCES = True
PARTS: tuple[str, ...] = ()


def _normalise(text: str) -> str:
    return " ".join(text.split())


def check_reference(reference: str) -> str | None:
    """An empty reference would reward silence."""
    return None if _normalise(reference) else "the reference is empty"


def score(response: str, references: Sequence[str]) -> Score:
    """1 or 0."""
    said = _normalise(response)
    if not said:
        return Score(0.0, status="unparsed")
    return Score(float(any(said == _normalise(reference) for reference in references)))
