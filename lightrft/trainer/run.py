"""One run from start to exit code: order, signals, and errors as one message."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lightrft.distributed.environment import quiet_start, quiet_transformers

quiet_start()

import torch

from lightrft.config.port import forget, meeting_point
from lightrft.config.render import render
from lightrft.config.resolve import Config
from lightrft.distributed.collectives import barrier
from lightrft.distributed.failure import shared_failure
from lightrft.errors import UserError
from lightrft.trainer.build import build_controller, build_strategy
from lightrft.trainer.controller import Controller
from lightrft.trainer.inputs import load_inputs

PATIENCE_SECONDS = 10.0  # for ending cleanly, before another signal ends the process at once


class Interrupted(UserError):
    """SIGTERM or Ctrl-C."""

    exit_code = 130


def run(config: Config) -> int:
    """Train as `config` says. Returns the exit code; every error a user can cause is one message."""
    quiet_transformers()
    controller: list[Controller] = []
    try:
        with _signals_as_exceptions():
            _train(config, controller)
    except Interrupted as error:
        last = controller[0].last_checkpoint if controller else None
        kept = f"the last checkpoint is {last}; go on with --load_checkpoint" if last else "no checkpoint yet"
        _complain(config, f"stopped by {error}; {kept}")
        return error.exit_code
    except UserError as error:
        _complain(config, f"error: {error}")
        return error.exit_code
    return 0


def _complain(config: Config, message: str) -> None:
    who = f" (rank {config.world.rank})" if config.world.rank else ""
    print(f"lightrft{who}: {message}", file=sys.stderr, flush=True)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGINT raise `Interrupted` in the main thread, so that `finally` blocks run.

    Launchers pass a signal on, and often follow with another: while the first is being answered they are
    ignored. Later than that, a signal ends a process whose cleaning up hangs.
    """
    stopped_at: list[float] = []

    def stop(number: int, frame: object) -> None:
        if not stopped_at:
            stopped_at.append(time.monotonic())
            raise Interrupted(signal.Signals(number).name)
        if time.monotonic() - stopped_at[0] > PATIENCE_SECONDS:
            os._exit(Interrupted.exit_code)

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _train(config: Config, running: list[Controller]) -> None:
    inputs = load_inputs(config)
    try:
        if config.world.rank == 0:
            print(render(inputs.plan), flush=True)
        world = meeting_point(config.world)
        if world.rank == 0 and world.master_port != config.world.master_port:
            print(f"port {config.world.master_port} is taken: meeting at {world.master_port}", flush=True)
        os.environ.update(world.environment())
        device, strategy = build_strategy(config)
        barrier()
        if world.rank == 0:
            forget(config.world.master_port)
        torch.manual_seed(config.seed)
        with shared_failure(config.world.rank, config.world.size):
            controller = build_controller(config, inputs, strategy, device)
            running.append(controller)
            try:
                controller.fit()
            finally:
                controller.observers.logger.close()
        # Only where all ranks arrive: after a failure, leaving the group would wait for those that are gone.
        barrier()
        controller.parts.engine.close()
        if torch.distributed.is_initialized():  # vLLM's shutdown takes the group with it
            torch.distributed.destroy_process_group()
    finally:
        inputs.reward.close()
