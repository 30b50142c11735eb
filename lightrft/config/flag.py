"""What the front end knows of one flag. The parser, `--help`, the rules and the docs are all made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightrft.config.messages import alternatives

# `words`: one or more words; `pair`: two numbers; `numbers`: any count of them, apart or comma-separated.
Kind = Literal["str", "int", "float", "flag", "words", "numbers", "pair", "json"]


@dataclass(frozen=True)
class Range:
    """The numbers that a flag takes: `Range(0, 1, open_low=True)` reads "above 0, at most 1"."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'above' if self.open_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'below' if self.open_high else 'at most'} {self.high:g}")
        return ", ".join(parts)


POSITIVE = Range(low=0, open_low=True)
AT_LEAST_0 = Range(low=0)
AT_LEAST_1 = Range(low=1)
SHARE = Range(0, 1)
SHARE_BELOW_1 = Range(0, 1, open_high=True)
SHARE_ABOVE_0 = Range(0, 1, open_low=True)


@dataclass(frozen=True)
class When:
    """A setting of another flag without which a flag does nothing.

    No `values` means anything but unset, 0 and off: `When("lora_rank")`. For a flag that takes a list, one
    entry among the values is enough.
    """

    flag: str
    values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        if not self.values:
            return bool(value)
        entries = value if isinstance(value, (list, tuple)) else (value,)
        return any(entry in self.values for entry in entries)

    def __str__(self) -> str:
        if self.values == (False,):
            return f"without --{self.flag}"
        return f"--{self.flag} {alternatives(self.values)}" if self.values else f"--{self.flag}"


@dataclass(frozen=True)
class Flag:
    """One flag. `planned` and `planned_choices` say what is not built yet: they are refused by name.

    A planned flag is refused whenever it is given, except at the value `off`, which asks for nothing.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    choices: tuple[str | int, ...] = ()
    default_text: str = ""  # how a default of None comes about: "value of --pretrain"
    range: Range | None = None
    advised: str = ""
    required: Literal["", "always", "to train"] = ""
    aliases: tuple[str, ...] = ()  # spellings of other systems, accepted with one line of deprecation
    negates: str = ""  # the flag that this one turns off
    metavar: str = ""
    hidden: bool = False
    user_file: bool = False  # also takes path/to/file.py:Object
    acts_when: tuple[When, ...] = ()  # does nothing unless one of these holds
    planned: str = ""
    planned_choices: Mapping[str | int, str] = field(default_factory=dict)
    off: Any = None

    @property
    def dest(self) -> str:
        """The name under which the value is kept."""
        return self.negates or self.name

    @property
    def value_name(self) -> str:
        """What stands for the value in help and docs; empty for an on/off flag."""
        if self.kind == "flag":
            return ""
        if self.metavar:
            return self.metavar
        if self.choices and self.kind == "str":
            return "NAME"
        names = {"int": "N", "float": "X", "str": "TEXT", "json": "JSON", "pair": "X Y"}
        return names.get(self.kind, "X ..." if self.kind == "numbers" else "NAME ...")


@dataclass(frozen=True)
class Group:
    """Flags that `--help` and the docs show together."""

    name: str
    flags: tuple[Flag, ...]
