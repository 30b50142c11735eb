r"""Grade-school arithmetic: 0.9 · answer + 0.1 · format, the weights of the reference recipe.

- `answer` is 1 where the number that the response states equals a reference, exactly (1,234.00 = 1234, 1/2 =
  0.5, -3 is not 3). Where a response states its answer: `rules/_answers.py`. No readable number there:
  "unparsed".
- `format` is 1 where the response ends its work in one of two forms: `<think>…</think>` and then `\boxed{…}`,
  as the reference recipe asks, or GSM8K's own line `#### 42`. The data set's own solutions therefore score 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightrft.rewards.rules._answers import find_answer, last_hash_answer, parse_number
from lightrft.rewards.rules.format import thinks_then_boxes
from lightrft.rewards.score import Score, excluded

IN_PROCESS = True
NEEDS_REFERENCES = True
PARTS = ("answer", "format")

ANSWER_WEIGHT = 0.9
FORMAT_WEIGHT = 0.1


def check_reference(reference: str) -> str | None:
    """A reference must state one number, alone or at the end of a GSM8K solution."""
    if parse_number(find_answer(reference) or "") is None:
        return f"the reference {reference[-60:]!r} states no number"
    return None


def _follows_format(response: str) -> bool:
    return thinks_then_boxes(response) or parse_number(last_hash_answer(response) or "") is not None


def score(response: str, references: Sequence[str]) -> Score:
    """Value in {0, 0.1, 0.9, 1}; excluded where no reference is a number."""
    golds = [parse_number(find_answer(reference) or "") for reference in references]
    golds = [gold for gold in golds if gold is not None]
    if not golds:
        return excluded()
    said = parse_number(find_answer(response) or "")
    answer, form = float(said in golds), float(_follows_format(response))
    return Score(
        ANSWER_WEIGHT * answer + FORMAT_WEIGHT * form,
        {"answer": answer, "format": form},
        "unparsed" if said is None else "ok",
    )
