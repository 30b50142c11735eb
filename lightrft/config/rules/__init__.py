"""All rules, checked together, so that a user sees every problem at once.

A rule is a function that yields messages; its name is what `--strict_validation` and tests call it. A new one
goes into the file of its subject and into that file's `RULES`.
"""

from __future__ import annotations

from lightrft.config.resolve import Config
from lightrft.config.rules import (
    algorithm,
    batch,
    effects,
    engine,
    engine_sizes,
    files,
    machine,
    reward_model,
    vision,
)
from lightrft.config.rules.rule import Finding

RULES = (
    *batch.RULES,
    *algorithm.RULES,
    *machine.RULES,
    *engine.RULES,
    *engine_sizes.RULES,
    *files.RULES,
    *reward_model.RULES,
    *vision.RULES,
    *effects.RULES,
)


def check(config: Config) -> list[Finding]:
    """Every rule that does not hold, errors and warnings, in the order of the table."""
    return [finding for rule in RULES for finding in rule(config)]
