r"""Finding the answer that a response states, and reading a plain number; all of it linear in the text.

Where the answer stands is decided in this order, the same for `gsm8k` and `math`:
1. the last complete `\boxed{…}`, braces nested as deep as they come; a box that was cut off is none;
2. the last line `#### …` that begins like a value (GSM8K's own form; a markdown heading is not an answer);
3. what follows the last "answer is", "answer:" or "answer =" up to the end of its sentence;
4. the whole response, where it is one short line (a model that answers "42").
A number somewhere in the text is not an answer: rewarding it would teach the model to mention numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction

SHORT_ANSWER = 200  # characters; longer than any answer, shorter than any solution

_BOX = r"\boxed"  # one that is left after the search for complete ones was cut off
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S.*)$", re.MULTILINE)
_PHRASE = re.compile(r"\banswer\s*(?:is\b|:|=)[ \t:]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|(?<!\\)[.;!?](?=\s|$)")
_VALUE_START = re.compile(r"[-+.$\\(\[{0-9]|[A-Za-z]\s*=|[A-Za-z]$")
_HAS_VALUE = re.compile(r"[0-9\\$]")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\!|\{,\}|\\,)[ ]?(?=[0-9]{3}(?![0-9]))")  # as LaTeX writes them
_MAX_LAYERS = 4  # of mark-up around an answer; a bound keeps `clean` linear


def last_boxed(text: str) -> str | None:
    r"""Content of the complete `\boxed{…}` that opens last: `\boxed{1} \boxed{x^{2}}` -> `x^{2}`."""
    open_braces: list[int | None] = []  # where the content of a box starts, None for any other brace
    best: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (best is None or start > best[0]):
                best = (start, match.start())
        elif token == "{":
            open_braces.append(None)
        elif token.endswith("{") and token.startswith(_BOX):
            open_braces.append(match.end())
    return None if best is None else text[best[0] : best[1]].strip()


def last_hash_answer(text: str) -> str | None:
    """What the last `#### …` line states, if it begins like a value: `#### $18` -> `$18`."""
    lines = [clean(match.group(1)) for match in _HASHES.finditer(text)]
    return next((line for line in reversed(lines) if _VALUE_START.match(line)), None)


def _last_phrase_answer(text: str) -> str | None:
    for match in reversed(list(_PHRASE.finditer(text))):
        rest = text[match.end() : match.end() + SHORT_ANSWER].lstrip("\n")
        end = _SENTENCE_END.search(rest)
        candidate = rest[: end.start()] if end else rest
        if _HAS_VALUE.search(candidate) and _BOX not in candidate:
            return clean(candidate)
    return None


def find_answer(response: str) -> str | None:
    """The answer that `response` states, cleaned, or None. The top of this file says where it is sought."""
    boxed = last_boxed(response)
    if boxed is not None:
        return clean(boxed)
    stated = last_hash_answer(response) or _last_phrase_answer(response)
    if stated is not None:
        return stated
    whole = response.strip()
    is_answer = 0 < len(whole) <= SHORT_ANSWER and "\n" not in whole and _BOX not in whole
    return clean(whole) if is_answer else None


def clean(answer: str) -> str:
    """Without what surrounds an answer and is none of it: `**$72.$**` -> `72`. A typographic minus is `-`."""
    answer = _THOUSANDS.sub("", answer.replace("\N{MINUS SIGN}", "-")).strip()
    for _ in range(_MAX_LAYERS):
        answer = answer.strip("* \t\r\n").rstrip(".,;:").strip()
        for left, right in _DELIMITERS:
            if answer.startswith(left) and answer.endswith(right) and len(answer) >= len(left + right):
                answer = answer[len(left) : -len(right)]
    return answer


# A unit is set apart and at least three letters long: "18 dollars", not the product 3x.
_UNITS = r"\\?%|[ ]*\\(?:text|mbox|mathrm)\s?\{[^{}]*\}|[ ]*°|[ ]+[A-Za-z]{3,}(?:[ -][A-Za-z]+){0,3}"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)(?:\\?[$€£¥])?[ ]*(?P<inner>[-+]?)"
    r"(?:\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\}"
    rf"|(?P<digits>{_DIGITS})(?:[ ]?/[ ]?(?P<over>[0-9]+))?)"
    rf"(?:{_UNITS})?"
)


def parse_number(answer: str) -> Fraction | None:
    r"""The number that `answer` is, exactly, or None where it is anything else.

    Reads signs, thousands separators, decimals, `a/b`, `\frac{a}{b}`. A currency sign, a percent sign or a
    unit of up to four words does not count ("18 dollars" is 18, "10\%" is 10). Of "2+40=42" it reads what
    follows "=".

    >>> parse_number("$1,234.00"), parse_number("+7"), parse_number("-3"), parse_number("3 or 4")
    (Fraction(1234, 1), Fraction(7, 1), Fraction(-3, 1), None)
    """
    text = clean(clean(answer).rsplit("=", 1)[-1])
    if len(text) > SHORT_ANSWER:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["inner"]):
        return None
    digits = match["top"] or match["digits"].replace(",", "")
    denominator = int(match["bottom"] or match["over"] or 1)
    if not any(c.isdigit() for c in digits) or denominator == 0:
        return None
    value = Fraction(digits) / denominator
    return -value if "-" in (match["sign"], match["inner"]) else value
