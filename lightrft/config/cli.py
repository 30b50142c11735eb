"""The order of a start: parse, resolve, check; then print, plan, become a launcher, or hand over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from lightrft.config.availability import refusals
from lightrft.config.help_text import help_text
from lightrft.config.launch import engine_environment, needs_launcher, relaunch
from lightrft.config.messages import listed
from lightrft.config.resolve import Config, Modality, resolve
from lightrft.config.rules import check
from lightrft.errors import ConfigError, UserError

SCRIPTS = {"text": ("train.py", "language"), "vision": ("train_vl.py", "vision-language")}


def start(argv: Sequence[str], modality: Modality) -> Config:
    """The checked configuration of a run that is about to begin. Its warnings are printed, by rank 0.

    Does not return for --help, --dry_run and --print_config (exit 0), nor where this process becomes a
    launcher. The plan of a run is printed by the run, once it has counted its prompts. What the engine needs
    of the environment is set, so torch must not have been imported.

    Raises:
        ConfigError: whatever does not fit, in one message.
    """
    if "-h" in argv or "--help" in argv:
        print(help_text(*SCRIPTS[modality]))
        raise SystemExit(0)
    config = resolve(argv, modality, os.environ)
    warnings, notes = _checked(config)
    if needs_launcher(config):
        relaunch(config, sys.argv[0], argv)
    if config.world.rank == 0:
        for kind, lines in (("deprecated", config.deprecations), ("note", notes), ("warning", warnings)):
            for line in lines:
                print(f"lightrft: {kind}: {line}", file=sys.stderr)
        if config.print_config:
            print(json.dumps(config.to_dict(), indent=2))
        elif config.dry_run:
            print(config.plan().render())
    if config.planning:
        raise SystemExit(0)
    for name, value in engine_environment(config).items():
        os.environ.setdefault(name, value)
    return config


def _checked(config: Config) -> tuple[list[str], list[str]]:
    """Warnings and notes of `config`; what is not built is a note where nothing will be trained.

    Raises:
        ConfigError: an error, a warning under --strict_validation, or something that is not built.
    """
    findings, missing = check(config), refusals(config)
    errors = [finding.message for finding in findings if finding.severity == "error"]
    warnings = [f"{f.rule}: {f.message}" for f in findings if f.severity == "warning"]
    if config.strict_validation:
        errors += [f"{warning} (a warning, an error by --strict_validation)" for warning in warnings]
    if not config.planning:
        errors += missing
    if errors:
        raise ConfigError(listed(errors))
    return warnings, missing


def exit_status(main: Callable[[], int]) -> int:
    """What `main` returns; a `UserError` becomes one message on stderr and its exit code, no traceback.

    What the front end raises is the same on all ranks of a host, so the first of them speaks for all.
    """
    try:
        return main()
    except UserError as error:
        local_rank = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        if local_rank == "0":
            print(f"lightrft: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
