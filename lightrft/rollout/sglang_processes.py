"""Around and inside SGLang's processes: what they inherit, what their signals do, what they run for us."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightrft.distributed.failure import end_all_ranks
from lightrft.errors import EngineError
from lightrft.rollout.checksum import hash_all
from lightrft.rollout.weight_sync import Bucket

PORTS_TRIED = 90
# torchrun's agent store would swallow the engine's own rendezvous; SGLang's memory saver cannot hold
# expandable segments; log-probs must be those at the sampling temperature.
HIDDEN = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "CROSS_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
    *(
        "TORCHELASTIC_RUN_ID",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "SGLANG_RETURN_ORIGINAL_LOGPROB",
    ),
)
# The context that we ask for has a margin, which may exceed the model's own length by some unused positions.
GIVEN = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}


@contextmanager
def private_environment() -> Iterator[None]:
    """Start processes that know nothing of the launcher; this one's environment is afterwards what it was.

    SGLang sets variables (of NCCL, CUDA) and the start method of `multiprocessing` for all of the process.
    """
    before = dict(os.environ)
    method = multiprocessing.get_start_method(allow_none=True)
    for name in HIDDEN:
        os.environ.pop(name, None)
    os.environ.update(GIVEN)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        multiprocessing.set_start_method(method, force=True)


def free_port(first: int) -> int:
    """The lowest free TCP port from `first` on.

    Raises:
        EngineError: none is free among the next `PORTS_TRIED`.
    """
    for port in range(first, first + PORTS_TRIED):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("", port))
            except OSError:
                continue
            return port
    last = first + PORTS_TRIED - 1
    raise EngineError(
        f"no TCP port from {first} to {last} is free: name one with --engine_kwargs '{{\"nccl_port\": N}}'"
    )


# -- signals


def ignore_signal(number: int, frame: Any) -> None:
    """For SGLang's start: a process that fails then is noticed by its exit, which raises in good order."""


def end_with_engine(number: int, frame: Any) -> None:
    end_all_ranks("a process of SGLang ended; its own message stands above", EngineError.exit_code)


def keep_signals(engine: Any) -> None:
    """Take back the signals that SGLang's event loop claims when it is first used; call it after the start.

    It would answer SIGTERM by waiting for requests, so that a launcher could not end this rank; and SIGQUIT,
    which its processes send when they fail, by killing this process without a word to the other ranks.
    """
    terminate = signal.getsignal(signal.SIGTERM)

    async def claim() -> None:
        engine.tokenizer_manager.auto_create_handle_loop()

    engine.loop.run_until_complete(claim())
    for number in (signal.SIGTERM, signal.SIGQUIT):
        engine.loop.remove_signal_handler(number)
    signal.signal(signal.SIGTERM, terminate or signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, end_with_engine)


# -- run by SGLang, which takes the name of a function as the format of what it is sent


def loader_name(function: Callable[[nn.Module, Bucket], None]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def seed_generators(model: nn.Module, sent: Bucket) -> None:
    """Seed the process's generators with the number in the one tensor that was sent."""
    [(_, seed)] = sent
    torch.manual_seed(int(seed))


def write_hashes(model: nn.Module, sent: Bucket) -> None:
    """Write the hashes of the weights, as JSON, to the path that is the name of the one tensor sent."""
    [(path, _)] = sent
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    told = {
        "hashes": hash_all(model.named_parameters()),
        "kv_heads": int(getattr(config, "num_key_value_heads", None) or 0),
    }
    Path(path).write_text(json.dumps(told))
