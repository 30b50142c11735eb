"""Starting: one process per GPU, in the environment that its inference engine needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lightrft.config.resolve import Config
from lightrft.config.world import free_port

RUNNER = "deepspeed.launcher.runner"


def engine_environment(config: Config) -> dict[str, str]:
    """Variables that must stand before torch and the engine are imported, where the user has not set them.

    vLLM runs inside this process, says nothing of its own and sends no statistics. On a CPU one thread is
    faster by far: its workers and torch's would fight for the cores (measured on 2: 18,000 against 300
    tokens a second).
    """
    if config.engine_type != "vllm":
        return {}
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    return variables if config.on_gpu else {"OMP_NUM_THREADS": "1", **variables}


def needs_launcher(config: Config) -> bool:
    """True for a process that was started alone and is to train on several GPUs."""
    return not config.world.launcher and not config.planning and config.num_ranks > 1


def launcher_command(config: Config, script: str, argv: Sequence[str]) -> list[str]:
    """The command line that starts `script` once per GPU, on a port of this host that is free.

    The GPUs are named by their number on the host: deepspeed ignores CUDA_VISIBLE_DEVICES beside --num_gpus,
    and would take GPUs that this user has not been given.
    """
    slots = ",".join(str(gpu.index) for gpu in config.gpus[: config.num_ranks])
    place = ["--include", f"localhost:{slots}", "--master_port", str(free_port())]
    return [sys.executable, "-m", RUNNER, *place, str(Path(script).resolve()), *argv]


def relaunch(config: Config, script: str, argv: Sequence[str]) -> NoReturn:
    """Become the launcher. Says so in one line."""
    command = launcher_command(config, script, argv)
    slots = command[command.index("--include") + 1]
    print(
        f"lightrft: {len(config.gpus)} GPUs are visible: starting {config.num_ranks} processes with "
        f"`deepspeed --include {slots} {Path(script).name} ...`",
        file=sys.stderr,
        flush=True,
    )
    os.execv(command[0], command)
