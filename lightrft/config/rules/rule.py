"""What a rule is: a small function with a name that yields one message for each thing that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from lightrft.config.resolve import Config

Severity = Literal["error", "warning"]
Check = Callable[[Config], Iterable[str]]


@dataclass(frozen=True)
class Finding:
    """A rule that does not hold, with the user's numbers and what would do."""

    rule: str
    severity: Severity
    message: str


@dataclass(frozen=True)
class Rule:
    name: str
    severity: Severity
    check: Check

    def __call__(self, config: Config) -> list[Finding]:
        return [Finding(self.name, self.severity, message) for message in self.check(config)]


def error(check: Check) -> Rule:
    """The run cannot work."""
    return Rule(getattr(check, "__name__", ""), "error", check)


def warning(check: Check) -> Rule:
    """The run works, but hardly as meant."""
    return Rule(getattr(check, "__name__", ""), "warning", check)
