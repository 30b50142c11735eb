"""Rules of the files that flags name: models, data, rewards, folders to write to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from lightrft.config.model_files import (
    absence,
    architecture_problem,
    missing_files,
    model_folder,
    read_config,
)
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning
from lightrft.config.sources import DATA_SUFFIXES, Source, split_sources
from lightrft.registry import is_user_path


@error
def model_is_here(config: Config) -> Iterator[str]:
    name, folder = config.pretrain, model_folder(config.pretrain, config.hub)
    missing = absence(name, config.hub)
    problems = [missing] if missing else []
    if folder is not None:
        problems += _folder_problems(folder, config.modality)
    if problems:
        yield f"--pretrain {name}: {'; '.join(problems)}"


def _folder_problems(folder: Path, modality: str) -> Iterator[str]:
    config = read_config(folder)
    problem = None if config is None else architecture_problem(config, modality)
    if problem:
        yield problem
    yield from missing_files(folder)


@error
def data_is_here(config: Config) -> Iterator[str]:
    for flag in ("prompt_data", "eval_data"):
        text = config.values[flag]
        if text is None:
            continue
        sources = split_sources(text)
        if not sources:
            yield f"--{flag} {text!r} names no source"
        for source in sources:
            problem = _source_problem(source, config)
            if problem:
                yield f"--{flag} {source}: {problem}"


def _source_problem(source: Source, config: Config) -> str | None:
    path = source.path
    if not source.is_local:
        if config.hub.offline and not config.hub.has_dataset(source.repository):
            return f"not in the cache {config.hub.cache}, and HF_HUB_OFFLINE forbids to fetch it"
        return None
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))[:3] if path.suffix else []
        here = f" (there is {', '.join(near)})" if near else ""
        return f"there is no such file or folder{here}"
    if not os.access(path, os.R_OK):
        return "it may not be read by this user"
    return _file_problem(path) if path.is_file() else None


def _file_problem(path: Path) -> str | None:
    if path.suffix not in DATA_SUFFIXES:
        kind = path.suffix or "a file without a suffix"
        return f"{kind} cannot be read: give {', '.join(DATA_SUFFIXES)}, a saved dataset folder or a hub name"
    return "the file is empty" if path.stat().st_size == 0 else None


@error
def folders_can_be_written(config: Config) -> Iterator[str]:
    for flag in ("save_path", "log_dir", "use_tensorboard"):
        if config.values[flag] is not None and (flag != "log_dir" or "log_dir" in config.given):
            problem = _write_problem(Path(config.values[flag]), config.world.rank)
            if problem:
                yield f"--{flag} {config.values[flag]}: {problem}"


def _write_problem(folder: Path, rank: int) -> str | None:
    """Why `folder` cannot be made or written to. Tries it: permission bits do not tell of read-only disks."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is a file, not a folder"
    probe = nearest / f".lightrft_write_test_{os.getpid()}_{rank}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as problem:
        return f"{nearest} cannot be written to: {problem.strerror}"
    return None


@error
def reward_files_are_here(config: Config) -> Iterator[str]:
    for spec in config.rewards:
        path = Path(spec.name.rpartition(":")[0])
        if is_user_path(spec.name) and not path.is_file():
            yield f"--reward {spec.name}: there is no file {path}"


@error
def recipe_is_readable(config: Config) -> Iterator[str]:
    if config.reward_recipe is None:
        return
    path = Path(config.reward_recipe)
    if not path.is_file():
        yield f"--reward_recipe {path}: there is no such file"
        return
    try:
        recipe = json.loads(path.read_text())
    except ValueError as problem:
        yield f"--reward_recipe {path}: not JSON: {problem}"
        return
    if not isinstance(recipe, dict):
        yield f"--reward_recipe {path}: needs an object of label: reward"


@warning
def needed_to_train(config: Config) -> Iterator[str]:
    for flag in ("prompt_data", "save_path"):
        if config.planning and config.values[flag] is None:
            yield f"--{flag} is needed to train, not to plan"


@warning
def model_reaches_max_len(config: Config) -> Iterator[str]:
    model = read_config(model_folder(config.pretrain, config.hub)) or {}
    longest = (model.get("text_config") or model).get("max_position_embeddings")
    if isinstance(longest, int) and config.max_len > longest:
        yield (
            f"max_len ({config.max_len}) is over the {longest} positions that the model was made for "
            f"(max_position_embeddings): use --max_len {longest}"
        )


RULES = (
    model_is_here,
    data_is_here,
    folders_can_be_written,
    reward_files_are_here,
    recipe_is_readable,
    needed_to_train,
    model_reaches_max_len,
)
