"""The words of `--reward`, NAME[:WEIGHT], where NAME may be path/to/file.py:function, and the models of
`--reward_pretrain`: one path, or NAME=PATH,NAME=PATH, which are the rewards model.NAME.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightrft.registry import is_user_path

MODEL = "model"  # the reward that a model gives; model.NAME, where there are several
_MODEL_NAME = re.compile(r"[A-Za-z]\w*")
_NAMED_MODELS = re.compile(r"[A-Za-z]\w*=")
_USER_FILE = re.compile(r"(?P<name>.+\.py:[^:\d][^:]*)(?::(?P<weight>[^:]*))?")


@dataclass(frozen=True)
class RewardSpec:
    """One reward of a sum: `math:0.9` is `RewardSpec("math", 0.9)`."""

    name: str
    weight: float = 1.0

    @property
    def kind(self) -> str:
        """`model` for `model.NAME`; of all others the name."""
        return MODEL if self.name.startswith(f"{MODEL}.") and not is_user_path(self.name) else self.name


@dataclass(frozen=True)
class RewardModelSpec:
    """One reward model: `a=org/rm` is `RewardModelSpec("model.a", "org/rm")`."""

    reward: str  # its name in --reward
    path: str


def parse_reward(text: str) -> RewardSpec:
    """One word of `--reward`.

    Raises:
        ValueError: the weight is not a finite number; the message repeats `text`.
    """
    match = _USER_FILE.fullmatch(text)
    if match is not None:
        name, weight = match["name"], match["weight"]
    else:
        name, colon, rest = text.partition(":")
        weight = rest if colon else None
    if weight is None:
        return RewardSpec(name)
    try:
        value = float(weight)
    except ValueError:
        raise ValueError(f"{text}: the weight {weight!r} is not a number: write {name}:0.5") from None
    if not math.isfinite(value):
        raise ValueError(f"{text}: the weight must be finite")
    return RewardSpec(name, value)


def parse_reward_models(text: str) -> tuple[RewardModelSpec, ...]:
    """The value of `--reward_pretrain`. A path that begins like NAME=PATH is written ./NAME=PATH.

    Raises:
        ValueError: a part is no NAME=PATH, or a name comes twice; the message repeats the part.
    """
    if not _NAMED_MODELS.match(text):
        return (RewardModelSpec(MODEL, text),)
    specs = []
    for part in text.split(","):
        name, _, path = (side.strip() for side in part.partition("="))
        if not _MODEL_NAME.fullmatch(name) or not path:
            raise ValueError(f"{part or text}: several models are NAME=PATH,NAME=PATH; a name is a word")
        specs.append(RewardModelSpec(f"{MODEL}.{name}", path))
    rewards = [spec.reward for spec in specs]
    twice = [reward for reward in dict.fromkeys(rewards) if rewards.count(reward) > 1]
    if twice:
        raise ValueError(f"{text}: the name {twice[0].removeprefix('model.')} is given twice")
    return tuple(specs)


def join_reward_models(specs: Sequence[RewardModelSpec]) -> str:
    """The inverse of `parse_reward_models`."""
    if len(specs) == 1 and specs[0].reward == MODEL:
        return specs[0].path
    return ",".join(f"{spec.reward.removeprefix(f'{MODEL}.')}={spec.path}" for spec in specs)
