"""A port for the ranks of one host to meet at, where their launcher's is taken. No torch."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from lightrft.config.world import World, free_port
from lightrft.errors import ConfigError

WAIT_SECONDS = 60.0


def is_free(port: int) -> bool:
    """Whether this host lets a server listen on `port` now."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError:
            return False
    return True


def meeting_point(world: World) -> World:
    """The same world, with a port that is free.

    deepspeed gives every run port 29500, so that a second run on a host could not start. Its ranks agree on
    another through a file that is named after their launcher's process. Ranks on several hosts keep the
    launcher's port; torchrun's is served by torchrun itself.
    """
    if world.launcher == "torchrun" or world.size != world.local_size or world.master_port == 0:
        return world
    if world.size == 1:
        return world if is_free(world.master_port) else replace(world, master_port=free_port())
    note = _note(world.master_port)
    if world.rank == 0:
        port = world.master_port if is_free(world.master_port) else free_port()
        _publish(note, port)
    else:
        port = _read(note)
    return replace(world, master_port=port)


def _note(port: int) -> Path:
    """A file that only the children of this launcher know; its start time tells it from an older process."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    return Path(tempfile.gettempdir()) / f"lightrft-{os.getuid()}-{parent}-{started}-{port}"


def _publish(note: Path, port: int) -> None:
    draft = note.with_suffix(f".{os.getpid()}")
    draft.write_text(str(port))
    draft.replace(note)


def _read(note: Path) -> int:
    deadline = time.monotonic() + WAIT_SECONDS
    while not note.exists():
        if time.monotonic() > deadline:
            raise ConfigError(f"rank 0 has not said at which port to meet within {WAIT_SECONDS:.0f} s")
        time.sleep(0.05)
    return int(note.read_text())


def forget(world_port: int) -> None:
    """Remove the note once all ranks have met; `world_port` is the launcher's."""
    _note(world_port).unlink(missing_ok=True)
