"""`--help`: every flag, in the groups of the docs, with its default."""

from __future__ import annotations

import textwrap
from typing import Any

from lightrft.config.availability import USER_FILE, available_choices, missing_part
from lightrft.config.flag import Flag
from lightrft.config.flags import GROUPS

WIDTH = 110
COLUMN = 34

HEAD = """\
usage: python {script} --pretrain MODEL --prompt_data DATA --save_path FOLDER
       --train_batch_size N --rollout_batch_size N [--flag value ...]

Reinforcement fine-tuning of {what} models. `deepspeed {script} ...`, `torchrun ... {script} ...` and
`srun ... python {script} ...` start it on several GPUs; `python {script}` uses all visible ones by itself.
--dry_run shows what a command would do. In [brackets]: the default. Not built yet: (planned).
"""


def help_text(script: str, what: str) -> str:
    """The whole help, ready to print."""
    lines = [HEAD.format(script=script, what=what)]
    for group in GROUPS:
        lines.append(f"{group.name}:")
        lines += [line for flag in group.flags if not flag.hidden for line in _entry(flag)]
        lines.append("")
    return "\n".join(lines).rstrip()


def _entry(flag: Flag) -> list[str]:
    left = f"  --{flag.name} {flag.value_name}".rstrip()
    wrapped = textwrap.wrap(description(flag), WIDTH - COLUMN, break_on_hyphens=False)
    if len(left) >= COLUMN:
        return [left, *(" " * COLUMN + line for line in wrapped)]
    return [f"{left:<{COLUMN}}{wrapped[0]}", *(" " * COLUMN + line for line in wrapped[1:])]


def description(flag: Flag) -> str:
    """What the flag does, its choices, advice and default."""
    text = flag.help
    if flag.choices:
        text += f"; one of {choices_shown(flag)}"
    if flag.advised:
        text += f" (advised: {flag.advised})"
    shown = default_shown(flag)
    text += f" [{shown}]" if shown else ""
    return f"{text} (planned)" if missing_part(flag) else text


def choices_shown(flag: Flag) -> str:
    """ "k1, k2, k3", and what is planned of them apart."""
    works = [str(choice) for choice in available_choices(flag)]
    works += ["path/to/file.py:Object"] * (flag.user_file and USER_FILE not in flag.planned_choices)
    planned = [str(choice) for choice in flag.planned_choices]
    return ", ".join(works) + (f" (planned: {', '.join(planned)})" if planned else "")


def default_shown(flag: Flag) -> str:
    """The default as a reader wants it; "" for a switch that is off and for no default."""
    if flag.required:
        return "required" if flag.required == "always" else "required to train"
    if flag.default_text:
        return flag.default_text
    if flag.default is None or flag.default is False:
        return ""
    return value_shown(flag.default)


def value_shown(value: Any) -> str:
    """A value as it is typed on a command line."""
    if value is True:
        return "on"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
