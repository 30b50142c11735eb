"""What is built and what is planned, flag by flag. A planned one is refused by name, never taken in silence.

Building a part means deleting its `planned` marks in `flags/`; nothing is to be changed here.
"""

from __future__ import annotations

from typing import Any

from lightrft.config.flag import Flag, When
from lightrft.config.flags import FLAGS
from lightrft.config.messages import alternatives
from lightrft.config.resolve import Config
from lightrft.config.reward_spec import parse_reward
from lightrft.registry import is_user_path

USER_FILE = "path.py:Object"


def choice_key(flag: Flag, value: Any) -> Any:
    """The entry of `flag.planned_choices` that speaks for `value`."""
    name = parse_reward(value).kind if flag.name == "reward" else value
    return USER_FILE if flag.user_file and is_user_path(str(name)) else name


def available_choices(flag: Flag) -> list[str | int]:
    """The choices that work today, in the table's order."""
    return [choice for choice in flag.choices if choice not in flag.planned_choices]


def missing_part(flag: Flag) -> str:
    """What must be built before `flag` can act; "" where it can act today."""
    if flag.planned or not flag.acts_when:
        return flag.planned
    parts = [_missing_for(when) for when in flag.acts_when]
    return "" if "" in parts else " or ".join(dict.fromkeys(parts))


def _missing_for(when: When) -> str:
    """What must be built before the setting `when` can be chosen; "" where it can."""
    flag = FLAGS[when.flag]
    if when.values == (False,):
        return ""
    if not when.values:
        return missing_part(flag)
    parts = [flag.planned_choices.get(value, "") for value in when.values]
    return "" if "" in parts else " or ".join(dict.fromkeys(parts))


def acts(config: Config, flag: Flag) -> bool:
    """Whether one of the settings that `flag` needs holds in this run."""
    rewards = [spec.kind for spec in config.rewards]
    values = {**config.values, "reward": rewards}
    return not flag.acts_when or any(when.holds(values[when.flag]) for when in flag.acts_when)


def refusals(config: Config) -> list[str]:
    """One message for each thing that this run asks for and that is not built, naming flag and value."""
    messages: list[str] = []
    for flag in FLAGS.values():
        if flag.negates:
            continue
        value = config.values[flag.name]
        if flag.planned and flag.name in config.given and value != flag.off:
            messages.append(
                f"not available yet: {_spelt(flag, value)} ({_reason(config, flag, flag.planned)})"
            )
        for entry in value if isinstance(value, list) else [value]:
            if flag.planned_choices and choice_key(flag, entry) in flag.planned_choices:
                messages.append(_refused_choice(config, flag, entry))
    return messages


def _refused_choice(config: Config, flag: Flag, value: Any) -> str:
    reason = _reason(config, flag, flag.planned_choices[choice_key(flag, value)])
    origin = ""
    if flag.name not in config.given:
        derived = config.resolved.get(flag.name)
        origin = f", because {derived}" if derived else ", the default"
    use = alternatives(available_choices(flag))
    return f"not available yet: --{flag.name} {value}{origin} ({reason}): give --{flag.name} {use}"


def _reason(config: Config, flag: Flag, part: str) -> str:
    """`part`, and the given flags that wait for it."""
    waiting = [
        f"--{other.name}" for other in FLAGS.values() if other.name in config.given and _waits(other, flag)
    ]
    return f"{part}; with it {', '.join(waiting)}" if waiting else part


def _waits(flag: Flag, for_flag: Flag) -> bool:
    return any(when.flag == for_flag.name and when.values != (False,) for when in flag.acts_when)


def _spelt(flag: Flag, value: Any) -> str:
    if flag.kind == "flag":
        return f"--{flag.name}"
    return f"--{flag.name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
