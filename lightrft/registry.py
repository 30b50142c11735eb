"""Finding a component by the name that its flag takes. No torch, and no import of what is only listed.

The file name is the flag's value: `algorithms/advantages/group_norm.py` is `--advantage_estimator
group_norm`; a `+` in the value is spelled `_plus` in the name (`reinforce++` is `reinforce_plus_plus.py`).
Files whose name starts with `_` are helpers. `path/to/file.py:Object` loads a user's own component instead.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from lightrft.errors import ConfigError

PACKAGE_ROOT = Path(__file__).parent


def module_name(value: str) -> str:
    """`reinforce++` -> `reinforce_plus_plus`; `seq-mean` -> `seq_mean`."""
    return value.replace("++", "_plus_plus").replace("+", "_plus").replace("-", "_")


def flag_value(name: str) -> str:
    """The inverse of `module_name` for file names: `reinforce_plus_plus` -> `reinforce++`."""
    return name.replace("_plus_plus", "++").replace("_plus", "+")


def names(package: str) -> list[str]:
    """The flag values that `lightrft/<package>/` offers, in alphabetical order, without importing any.

    >>> "group_norm" in names("algorithms/advantages")
    True
    """
    folder = PACKAGE_ROOT / package
    return sorted(flag_value(p.stem) for p in folder.glob("*.py") if not p.stem.startswith("_"))


def is_user_path(value: str) -> bool:
    """True for `path/to/file.py:Object`."""
    path, _, attribute = value.rpartition(":")
    return path.endswith(".py") and attribute.isidentifier()


def load_user_object(value: str, flag: str) -> Any:
    """Import `path/to/file.py:Object` and return the object.

    Raises:
        ConfigError: no such file, it fails to import, or it has no such name; the message names `flag`.
    """
    path_text, _, attribute = value.rpartition(":")
    path = Path(path_text).expanduser()
    if not path.is_file():
        raise ConfigError(f"{flag} {value}: there is no file {path}")
    # One module per file, whatever its name: two files called reward.py must not shadow each other. It
    # stands in sys.modules so that its functions can be pickled.
    name = f"lightrft_user_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{flag} {value}: {path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(
                f"{flag} {value}: importing {path} failed: {type(error).__name__}: {error}"
            ) from error
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(
            f"{flag} {value}: {path} has no {attribute!r}; it has {', '.join(public) or 'nothing public'}"
        )
    return getattr(module, attribute)


def load(package: str, value: str, flag: str) -> Any:
    """The module of a built-in component, or the object of a user's file.

    Raises:
        ConfigError: the name is neither built in nor a `path.py:Object`; the message lists what there is.
    """
    if is_user_path(value):
        return load_user_object(value, flag)
    if value not in names(package):
        known = ", ".join(names(package))
        raise ConfigError(f"{flag} {value}: unknown; choose from {known}, or give path/to/file.py:Object")
    return importlib.import_module(f"lightrft.{package.replace('/', '.')}.{module_name(value)}")
