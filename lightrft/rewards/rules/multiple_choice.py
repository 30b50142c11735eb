r"""1 where the response chooses the letter that a reference names, A to J.

The choice is sought in this order: the last complete `\boxed{…}`; what follows the last "answer is" or
"answer:"; the whole response, where it is nothing but a choice. `B`, `(B)`, `B.`, `\text{B}`, `option B` and
`B) 12 cm` choose B. A letter that merely occurs in the text ("A triangle …") chooses nothing: "unparsed".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightrft.rewards.rules._answers import clean, last_boxed
from lightrft.rewards.score import Score, excluded

IN_PROCESS = True
NEEDS_REFERENCES = True
PARTS: tuple[str, ...] = ()

LONGEST = 200  # characters of a choice with its text
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_WORD = r"(?:(?i:option|choice)\s+)?"
_CHOICE = re.compile(
    _WORD + r"(?:\(([A-Ja-j])\)|\[([A-Ja-j])\]|([A-Ja-j]))(?:\s*[.:)].*)?",
    re.DOTALL,
)
_ALONE = "([A-J])(?![\\w'\N{RIGHT SINGLE QUOTATION MARK}])"  # no word, and no "I'm"
_PHRASE = re.compile(rf"(?i:\banswer\s*(?:is\b|:|=))[\s*$:]*{_WORD}(?:\(([A-Ja-j])\)|{_ALONE})")


def _letter(text: str | None) -> str | None:
    """The choice that `text` is, a capital letter; None where it is anything else."""
    if text is None or len(text) > LONGEST:
        return None
    match = _CHOICE.fullmatch(clean(_WRAPPED.sub(r"\1", text)))
    return None if match is None else next(group for group in match.groups() if group).upper()


def find_choice(response: str) -> str | None:
    """The letter that `response` chooses, or None. The top of this file says where it is sought.

    >>> find_choice(r"so \boxed{(c)}"), find_choice("The answer is D."), find_choice("A triangle has 3 sides")
    ('C', 'D', None)
    """
    boxed = last_boxed(response)
    if boxed is not None:
        return _letter(boxed)
    found = [next(g for g in match.groups() if g) for match in _PHRASE.finditer(response)]
    return found[-1].upper() if found else _letter(response.strip())


def check_reference(reference: str) -> str | None:
    """A reference must be a letter."""
    return None if _letter(reference) else f"the reference {reference[:60]!r} is no choice from A to J"


def score(response: str, references: Sequence[str]) -> Score:
    """1 or 0; excluded where no reference is a choice."""
    golds = {letter for reference in references if (letter := _letter(reference))}
    if not golds:
        return excluded()
    said = find_choice(response)
    return Score(0.0, status="unparsed") if said is None else Score(float(said in golds))
