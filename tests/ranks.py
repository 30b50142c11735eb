"""Run a worker script on several gloo ranks, for tests."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

# Ranks that this machine can run: any number on the CPU, one for each GPU where there are GPUs.
WORLDS = [w for w in (1, 2) if not torch.cuda.is_available() or w <= torch.cuda.device_count()]
WORKERS = Path(__file__).parent / "workers"
# Ends what hangs; a machine several times slower than ours must not meet it.
LIMIT_S = 1200.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def launch(world: int, command: list[str], timeout: float = LIMIT_S) -> subprocess.CompletedProcess:
    """`python command...` on `world` ranks under torchrun; the process result, never raising for its code."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", str(free_port())]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *ranks, *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environ,
        check=False,
    )


def run_worker(name: str, world: int, out: Path, **settings: object) -> dict:
    """Run `tests/workers/<name>.py` with `settings` as JSON; returns what rank 0 wrote to `out`."""
    done = launch(world, [str(WORKERS / f"{name}.py"), str(out), json.dumps(settings)])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(out.read_text())
