"""The flags of a run, for the tools beside it: they read data and rewards exactly as `train.py` does."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

from lightrft.config.availability import refusals
from lightrft.config.messages import listed
from lightrft.config.resolve import Config, resolve
from lightrft.config.rules import files
from lightrft.config.rules.rule import Rule
from lightrft.errors import ConfigError

DATA_FLAGS = (
    "prompt_data",
    "prompt_data_probs",
    "input_key",
    "reference_key",
    "label_key",
    "apply_chat_template",
    "system_prompt",
    "input_template",
    "strict_data",
    "seed",
)
REWARD_FLAGS = ("reward", "reward_timeout")
# What train.py cannot do without, and a tool has no use for.
FILLERS = {"pretrain": "not/used", "train_batch_size": "1", "rollout_batch_size": "1"}
RULES = (files.data_is_here, files.reward_files_are_here)


def run_config(argv: Sequence[str], allowed: Sequence[str], rules: Sequence[Rule] = RULES) -> Config:
    """The configuration that these words of `train.py`'s flags describe.

    Raises:
        ConfigError: a flag that is not among `allowed`, a value that cannot be, or files that are not there.
    """
    given = [word[2:].partition("=")[0] for word in argv if word.startswith("--")]
    foreign = [_foreign(name, allowed) for name in dict.fromkeys(given) if name not in allowed]
    if foreign:
        raise ConfigError(listed(foreign))
    words = list(argv)
    for name, value in FILLERS.items():
        words += [] if name in given else [f"--{name}", value]
    config = resolve([*words, "--dry_run"], "text", os.environ, gpus=())
    problems = [finding.message for rule in rules for finding in rule(config)] + refusals(config)
    if problems:
        raise ConfigError(listed(problems))
    return config


def _foreign(name: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean --{near[0]}? " if near else ""
    return f"--{name}: {hint}this tool takes {', '.join(f'--{flag}' for flag in allowed)}"
