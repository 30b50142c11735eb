"""From a command line to typed values, with every problem of its wording reported at once."""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightrft.config.credentials import HIDDEN, hide_secrets, is_secret_name
from lightrft.config.flag import Flag
from lightrft.config.flags import ALIASES, FLAGS, GROUPS
from lightrft.config.messages import listed
from lightrft.config.reward_spec import parse_reward, parse_reward_models
from lightrft.errors import ConfigError
from lightrft.registry import is_user_path

# Flags of the reference system and its relatives that became a value of another flag.
MOVED = {
    "flash_attn": "--attn_implementation flash_attention_2",
    "use_gspo": "--policy_loss gspo",
    "use_cpg_loss": "--policy_loss cpgd",
    "normalize_advantages": "--advantages_norm",
    "normalize_reward": "--reward_running_norm",
    "max_samples": "--prompt_data path@[0:N]",
    "text_only": "train.py, which is for text, in place of train_vl.py",
    "actor_num_gpus_per_node": "--num_gpus",
}

_JSON_LIKE = """Give one in single quotes, like '{"enforce_eager": true}'"""


@dataclass(frozen=True)
class Arguments:
    """A parsed command line: every flag's value, the names of flags as written, and lines of deprecation."""

    values: dict[str, Any]
    given: frozenset[str]
    deprecations: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    """argparse that only tells words apart; values are converted here, so that all problems are collected."""

    def error(self, message: str) -> Any:
        raise ConfigError(message)


def build_parser() -> argparse.ArgumentParser:
    """A parser of every flag in the table. It keeps raw words and leaves out what was not given."""
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for group in GROUPS:
        section = parser.add_argument_group(group.name)
        for flag in group.flags:
            if flag.kind == "flag":
                action = "store_false" if flag.negates else "store_true"
                section.add_argument(
                    f"--{flag.name}", dest=flag.dest, action=action, default=argparse.SUPPRESS
                )
            else:
                # "?" and "*" leave a missing value to us: argparse would stop at the first.
                many = flag.kind in ("words", "numbers", "pair")
                section.add_argument(f"--{flag.name}", dest=flag.dest, nargs="*" if many else "?")
    return parser


def parse(argv: Sequence[str]) -> Arguments:
    """Typed values of every flag, defaults filled in.

    Raises:
        ConfigError: unknown flags, values of the wrong form, secrets, missing required flags: all in one
            message, one a line. No secret is repeated in it.
    """
    words, problems = hide_secrets(argv, FLAGS)
    words, deprecations = _replace_aliases(words)
    unknown, meant = _unknown_flags(words)
    problems += unknown + _valued_switches(words)
    words = [w.partition("=")[0] if _is_switch(w.partition("=")[0]) else w for w in words]
    namespace, extra = build_parser().parse_known_args(words)
    problems += _stray_words(extra)
    values = {flag.name: copy.copy(flag.default) for flag in FLAGS.values() if not flag.negates}
    given = {name for word in words if (name := word.partition("=")[0].removeprefix("--")) in FLAGS}
    for name, raw in vars(namespace).items():
        if isinstance(raw, bool):
            values[name] = raw
        elif HIDDEN not in (raw if isinstance(raw, list) else [raw]):
            try:
                values[name] = convert(FLAGS[name], raw if isinstance(raw, list) else [raw])
            except ValueError as error:
                problems.append(f"--{name} {error}")
    problems += [problem for name, problem in _missing(values, given).items() if name not in meant]
    if problems:
        raise ConfigError(listed(problems))
    return Arguments(values, frozenset(given), tuple(deprecations))


def convert(flag: Flag, words: Sequence[str | None]) -> Any:
    """The value that `words` spell for `flag`.

    Raises:
        ValueError: none was given, or one of the wrong form; the message continues "--name ".
    """
    texts = [word for word in words if word is not None]
    if not texts:
        raise ValueError(f"needs a value: {flag.help}")
    if flag.kind == "words":
        for text in texts:
            _check_choice(flag, text)
        return texts
    if flag.kind in ("numbers", "pair"):
        numbers = [_number(flag, t) for text in texts for t in text.replace(",", " ").split()]
        if flag.kind == "pair" and len(numbers) != 2:
            raise ValueError(f"{' '.join(texts)}: needs two numbers, like 0.9 0.95")
        return numbers
    text = texts[0]
    if flag.kind == "json":
        return _json_object(text)
    if flag.kind == "str" and not text:
        raise ValueError("is empty: leave the flag out, or give a value")
    if flag.name == "reward_pretrain":
        parse_reward_models(text)
    value: Any = _number(flag, text) if flag.kind in ("int", "float") else text
    if flag.choices:
        _check_choice(flag, value)
    return value


def _number(flag: Flag, text: str) -> int | float:
    whole = flag.kind == "int"
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ValueError(f"{text}: not a {'whole ' if whole else ''}number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text}: must be finite")
    if flag.range is not None and not flag.range.holds(value):
        raise ValueError(f"{text}: must be {flag.range}")
    return value


def _check_choice(flag: Flag, value: Any) -> None:
    name = value
    if flag.kind == "words":
        if flag.name != "reward":
            return
        name = parse_reward(value).kind
    if name in flag.choices or (flag.user_file and is_user_path(name)):
        return
    close = difflib.get_close_matches(str(name), list(map(str, flag.choices)), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    own = ", or path/to/file.py:Object of your own" if flag.user_file else ""
    raise ValueError(f"{value}: {hint}choose from {', '.join(map(str, flag.choices))}{own}")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{text}: not JSON: {error}. {_JSON_LIKE}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text}: not a JSON object. {_JSON_LIKE}")
    return value


def _is_switch(word: str) -> bool:
    return word.startswith("--") and word[2:] in FLAGS and FLAGS[word[2:]].kind == "flag"


def _replace_aliases(words: Sequence[str]) -> tuple[list[str], list[str]]:
    replaced, lines = [], []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in ALIASES:
            lines.append(f"--{name} is an old spelling: write --{ALIASES[name]}")
            replaced.append(f"--{ALIASES[name]}{equals}{value}")
        else:
            replaced.append(word)
    return replaced, list(dict.fromkeys(lines))


def _unknown_flags(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """A problem for each unknown flag, and the flags that were meant as far as the spelling tells."""
    problems, meant = [], set()
    for word in words:
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--") or " " in name or name in FLAGS or is_secret_name(name):
            continue
        if name in MOVED:
            problems.append(f"--{name}: unknown flag: here it is {MOVED[name]}")
            continue
        spelt = name.replace("-", "_")
        close = difflib.get_close_matches(spelt, [*FLAGS, *ALIASES], n=1, cutoff=0.6)
        close = [ALIASES.get(match, match) for match in close]
        meant.update(close)
        hint = f": did you mean --{close[0]}?" if close else " (see --help)"
        problems.append(f"--{name}: unknown flag{hint}")
    return problems, meant


def _valued_switches(words: Sequence[str]) -> list[str]:
    switches = [word.partition("=") for word in words if "=" in word]
    return [f"{name}={value}: the flag takes no value" for name, _, value in switches if _is_switch(name)]


def _stray_words(extra: Sequence[str]) -> list[str]:
    """Words that belong to no flag; those after an unknown flag are taken for its values."""
    problems, after_unknown = [], False
    for word in extra:
        if word.startswith("-"):
            after_unknown = True
            if not word.startswith("--"):
                problems.append(f"{word}: unknown flag: flags start with two dashes (see --help)")
        elif not after_unknown and word != HIDDEN:
            problems.append(f"{word}: a value without a flag")
    return problems


def _missing(values: dict[str, Any], given: set[str]) -> dict[str, str]:
    planning = values["dry_run"] or values["print_config"]
    needed = ("always",) if planning else ("always", "to train")
    absent = [f for f in FLAGS.values() if f.required in needed and f.name not in given]
    return {flag.name: f"--{flag.name} is missing: {flag.help.split(';')[0]}" for flag in absent}
