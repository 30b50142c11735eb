r"""Competition mathematics: 1 where math-verify finds the stated answer equal to a reference.

Where a response states its answer: `rules/_answers.py`; `\boxed{\frac{1}{2}}` equals 0.5. Only that answer is
given to math-verify, as LaTeX, to its grammar-based parser. Its search for plain expressions in free text is
not used: it costs most of the time, and hands the response's text to sympy's `parse_expr`, which evaluates
it. (sympy still builds single numerals that way, after the grammar has found them to be numerals.)

math-verify's own time limit is an alarm signal, which only works on a main thread and scores 0 elsewhere (its
source says so); here it is off and the grader process keeps the limit.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from lightrft.rewards.rules._answers import clean, find_answer, last_boxed, last_hash_answer, parse_number
from lightrft.rewards.score import Score, excluded

IN_PROCESS = False
NEEDS_REFERENCES = True
PARTS: tuple[str, ...] = ()

MAX_ANSWER = 1000  # characters; a longer "answer" is the solution itself

_COMMANDS = re.compile(r"\\(?:text|mbox|mathrm|mathbf|textbf|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}")
# TeX takes one token for each half of a fraction, which math-verify's grammar only knows of digits.
_BARE_FRACTION = re.compile(r"\\([dt]?frac)\s*(\\(?:pi|theta|alpha|beta|phi|lambda))\s*([0-9A-Za-z])")
_ONE_WORD = re.compile(r"[A-Za-z]{4,}")


@cache
def prepare() -> None:
    """Import math-verify and silence it: it reports every expression that it cannot read."""
    import math_verify.grader
    import math_verify.parser

    for module in ("math_verify", "latex2sympy2_extended", "sympy"):
        logging.getLogger(module).setLevel(logging.CRITICAL)
    # Its reminder that no time limit is set; ours is.
    math_verify.parser.TIMEOUT_WARNING_SHOWN = True
    math_verify.grader.TIMEOUT_WARNING_SHOWN = True


def _words(answer: str) -> list[str]:
    """Words outside of LaTeX commands."""
    return _WORD.findall(_COMMANDS.sub(" ", answer))


def _is_prose(answer: str) -> bool:
    """Several words are a sentence, which math-verify would read as a product of letters."""
    return len(_words(answer)) > 1 and parse_number(answer) is None


@lru_cache(maxsize=4096)
def _parse(answer: str) -> tuple[Any, ...]:
    """math-verify's readings of one answer, one of them at least a sympy object; () where it has none."""
    from math_verify import LatexExtractionConfig, parse

    prepare()
    if not answer or len(answer) > MAX_ANSWER or _is_prose(answer):
        return ()
    if _ONE_WORD.fullmatch(answer):
        answer = rf"\text{{{answer}}}"  # else a product of its letters: "east" would equal "seat"
    answer = _BARE_FRACTION.sub(r"\\\1{\2}{\3}", answer)
    # All of the answer or nothing: by default an answer that cannot be parsed is searched for parts that can,
    # and `\boxed{3 - \frac{1}{2} ]}` would be read as 1/2.
    config = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
    readings = parse(
        rf"\boxed{{{answer}}}", extraction_config=config, extraction_mode="first_match", parsing_timeout=None
    )
    return tuple(readings) if any(not isinstance(reading, str) for reading in readings) else ()


def _reference_answer(reference: str) -> str:
    """A reference may be a bare answer, or a solution that ends in a box or a `####` line."""
    return clean(last_boxed(reference) or last_hash_answer(reference) or reference)


def _stated(response: str) -> str | None:
    """The stated answer; plain words ("None", "I don't know.") state none unless they are boxed."""
    answer = find_answer(response)
    if answer is None or last_boxed(response) is not None:
        return answer
    return None if _words(answer) and parse_number(answer) is None else answer


def check_reference(reference: str) -> str | None:
    """A reference must be readable as mathematics."""
    answer = _reference_answer(reference)
    if parse_number(answer) is None and not _parse(answer):
        return f"math-verify cannot read the reference {answer[:60]!r}"
    return None


def _equal(said: str, gold: str) -> bool:
    from math_verify import verify

    number = parse_number(said)
    both_name_a_variable = "=" in said and "=" in gold  # x = 5 is not y = 5
    if number is not None and number == parse_number(gold) and not both_name_a_variable:
        return True  # equal numbers need no computer algebra; unequal ones may still agree when rounded
    return bool(verify(list(_parse(gold)), list(_parse(said)), timeout_seconds=None))


def score(response: str, references: Sequence[str]) -> Score:
    """1 or 0; excluded where no reference can be read."""
    golds = [_reference_answer(reference) for reference in references if check_reference(reference) is None]
    if not golds:
        return excluded()
    said = _stated(response)
    if said is None or (parse_number(said) is None and not _parse(said)):
        return Score(0.0, status="unparsed")
    return Score(float(any(_equal(said, gold) for gold in golds)))
