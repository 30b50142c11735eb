"""Which process this is among how many, as its launcher says. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lightrft.errors import ConfigError

LAUNCHERS = "deepspeed, torchrun or srun"


@dataclass(frozen=True)
class World:
    """This process's place. `launcher` is "" where it was started alone.

    `World(size=4, rank=2, local_rank=0, local_size=2, launcher="torchrun", master_addr="node1",
    master_port=29500)` is the first process on the second of two hosts.
    """

    size: int = 1
    rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    launcher: str = ""
    master_addr: str = "127.0.0.1"
    master_port: int = 0  # 0: any free port of this host

    def environment(self) -> dict[str, str]:
        """What `torch.distributed`'s env:// rendezvous and DeepSpeed read, for every launcher alike.

        Without a master port (a process alone) a free one of this host is chosen.
        """
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port or free_port()),
        }


def free_port() -> int:
    """A TCP port that nothing listens on at this moment."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def read_world(environ: Mapping[str, str]) -> World:
    """The world of this process, from the environment that its launcher made.

    Raises:
        ConfigError: a launcher's variable is not a number, or the rank lies outside the world.
    """
    if all(name in environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        world = _from_launcher(environ)
    elif _is_srun_task(environ):
        world = _from_slurm(environ)
    else:
        return World()
    if not 0 <= world.rank < world.size or not 0 <= world.local_rank < world.local_size:
        raise ConfigError(
            f"the launcher's variables contradict each other: rank {world.rank} of {world.size}, local rank "
            f"{world.local_rank} of {world.local_size}"
        )
    return world


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"{name}={environ[name]!r} in the environment is not a whole number") from None


def _from_launcher(environ: Mapping[str, str]) -> World:
    size = _number(environ, "WORLD_SIZE")
    # torchrun says LOCAL_WORLD_SIZE, deepspeed LOCAL_SIZE.
    local = next((n for n in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE") if n in environ), None)
    torchrun = "TORCHELASTIC_RUN_ID" in environ
    return World(
        size=size,
        rank=_number(environ, "RANK"),
        local_rank=_number(environ, "LOCAL_RANK"),
        local_size=_number(environ, local) if local else size,
        launcher="torchrun" if torchrun else "deepspeed" if "CROSS_SIZE" in environ else "launcher",
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else 0,
    )


def _is_srun_task(environ: Mapping[str, str]) -> bool:
    """True for a task of srun. The shell of an sbatch script has a SLURM_PROCID as well, but no step."""
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    in_step = "SLURM_STEP_ID" in environ or "SLURM_JOB_ID" not in environ
    return all(name in environ for name in names) and in_step


def _from_slurm(environ: Mapping[str, str]) -> World:
    size = _number(environ, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS")
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", str(size)))
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    counts = expand_task_counts(per_node)
    hosts = environ.get(
        "SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", environ.get("SLURM_JOB_NODELIST"))
    )
    # Tasks must agree on a port without talking; one that depends on the step keeps two runs apart.
    step = int(environ.get("SLURM_JOB_ID", "0")) * 8 + int(environ.get("SLURM_STEP_ID", "0"))
    return World(
        size=size,
        rank=_number(environ, "SLURM_PROCID"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=counts[node] if node < len(counts) else counts[0],
        launcher="srun",
        master_addr=environ.get("MASTER_ADDR", first_host(hosts) if hosts else "127.0.0.1"),
        master_port=_number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else 20000 + step % 20000,
    )


def expand_task_counts(text: str) -> list[int]:
    """SLURM's tasks per node: "4(x2),1" -> [4, 4, 1].

    Raises:
        ConfigError: not of that form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ConfigError(f"SLURM's tasks per node, {text!r}, are not like 4(x2),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list.

    >>> first_host("gpu[07-09,12],login"), first_host("rack1-n2"), first_host("a[1-2]b[05,7]")
    ('gpu07', 'rack1-n2', 'a1b05')
    """
    depth, first = 0, nodelist
    for i, character in enumerate(nodelist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            first = nodelist[:i]
            break
    # "gpu[07-09,12]": of each bracket the text before the first "-" or ",", leading zeros kept.
    return re.sub(r"\[([^\]\-,]+)[^\]]*\]", r"\1", first)
