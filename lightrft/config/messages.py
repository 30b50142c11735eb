"""How several problems become one message."""

from __future__ import annotations

from collections.abc import Sequence


def listed(problems: Sequence[str]) -> str:
    """One problem as it is; several under a line with their number.

    >>> print(listed(["a", "b"]))
    2 problems:
      - a
      - b
    """
    if len(problems) == 1:
        return problems[0]
    return "\n  - ".join([f"{len(problems)} problems:", *problems])


def alternatives(values: Sequence[object]) -> str:
    """`[8, 12]` -> "8 or 12"."""
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
