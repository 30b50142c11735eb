"""Keys and tokens are never flags: every user of a host sees a command line, and shell histories keep it.

They are recognised by the flag's name or by their own shape, hidden before anything else looks at the words,
and answered with the environment variable to use.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

HIDDEN = "<hidden>"

# A flag that nobody defined and whose name asks for a secret.
_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|access_?key|auth|token|secret|password|passwd|credentials?)$"
    r"|^(wandb|hf|hub|huggingface|rm|reward|remote_rm|openai)_key$"
)
# Values that are keys wherever they stand: W&B (old and new), Hugging Face, and the "sk-" family.
_SECRET_VALUE = re.compile(
    r"^([0-9a-f]{40}|wandb_v\d+_\w{20,}|(local-)?[0-9a-f]{40}|hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,})$"
)
# User and password, or a key in the query, of a URL.
_SECRET_URL = re.compile(r"^\w+://([^/\s@]+@|\S*[?&]\w*(key|token|secret|password)=)", re.IGNORECASE)

_VARIABLES = (
    (re.compile(r"wandb"), "WANDB_API_KEY"),
    (re.compile(r"^hf|hub|hugging"), "HF_TOKEN"),
    (re.compile(r"teacher"), "LIGHTRFT_TEACHER_TOKEN"),
    (re.compile(r"rm|reward"), "LIGHTRFT_RM_TOKEN"),
)


def _advice(name: str, value: str) -> str:
    if value.startswith("hf_"):
        return "export it as HF_TOKEN"
    for pattern, variable in _VARIABLES:
        if pattern.search(name):
            return f"export it as {variable}"
    if re.fullmatch(r"(local-)?[0-9a-f]{40}|wandb_v\d+_\w+", value):
        return "export it as WANDB_API_KEY"
    return "export it as WANDB_API_KEY, HF_TOKEN or LIGHTRFT_RM_TOKEN, whichever it is"


def hide_secrets(argv: Sequence[str], known: Container[str]) -> tuple[list[str], list[str]]:
    """`argv` with every secret replaced by `HIDDEN`, and one problem for each.

    `known` holds the names of flags that exist: `--input_key` is none of a secret's names.
    """
    words, problems, flag, expects_secret = list(argv), [], "", False
    for i, word in enumerate(argv):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            flag, expects_secret = name, False
            if name.replace("-", "_") not in known and _SECRET_NAME.search(name.replace("-", "_")):
                problems.append(f"--{name}: a secret is never a flag: {_advice(name, value)}")
                expects_secret = not equals
                if equals:
                    words[i] = f"--{name}={HIDDEN}"
                continue
            if not equals:
                continue
        else:
            value = word
        if expects_secret:
            words[i], expects_secret = HIDDEN, False
        elif _SECRET_VALUE.match(value) or _SECRET_URL.match(value):
            words[i] = f"--{name}={HIDDEN}" if word.startswith("--") else HIDDEN
            problems.append(
                f"--{flag or '...'}: its value looks like a secret, which is never given on the command "
                f"line: {_advice(flag, value)}"
            )
    return words, problems


def is_secret_name(name: str) -> bool:
    """Whether an unknown flag of this name has been answered here already."""
    return bool(_SECRET_NAME.search(name.replace("-", "_")))
