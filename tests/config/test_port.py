"""Where the ranks of a host meet when their launcher's port is taken."""

import os
import socket
import subprocess
import sys

import pytest

from lightrft.config.port import forget, is_free, meeting_point
from lightrft.config.world import World, free_port


@pytest.fixture
def taken():
    with socket.socket() as s:
        s.bind(("", 0))
        s.listen()
        yield s.getsockname()[1]


def world(port, size=1, rank=0, local_size=None, launcher="deepspeed"):
    return World(size, rank, rank, local_size or size, launcher, "127.0.0.1", port)


def test_a_free_port_is_kept(taken):
    port = free_port()
    assert is_free(port)
    assert not is_free(taken)
    assert meeting_point(world(port)).master_port == port


def test_a_process_alone_goes_elsewhere(taken):
    got = meeting_point(world(taken))
    assert got.master_port != taken
    assert is_free(got.master_port)


@pytest.mark.parametrize("kept", [{"launcher": "torchrun"}, {"size": 4, "local_size": 2}])
def test_torchruns_port_and_that_of_several_hosts_stay(taken, kept):
    assert meeting_point(world(taken, **kept)).master_port == taken


def test_ranks_of_one_launcher_agree(taken, tmp_path):
    """Two children of one process, the second first."""
    code = (
        "import sys\n"
        "from lightrft.config.port import meeting_point\n"
        "from lightrft.config.world import World\n"
        f"world = World(2, int(sys.argv[1]), 0, 2, 'deepspeed', '127.0.0.1', {taken})\n"
        "print(meeting_point(world).master_port)\n"
    )
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, rank], stdout=subprocess.PIPE, text=True, env=environ)
        for rank in ("1", "0")
    ]
    ports = {int(r.communicate(timeout=30)[0]) for r in ranks}
    assert len(ports) == 1
    assert taken not in ports
    assert len(list(tmp_path.iterdir())) == 1


def test_the_note_is_removed(taken, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    meeting_point(world(taken, size=2))
    assert len(list(tmp_path.iterdir())) == 1
    forget(taken)
    assert list(tmp_path.iterdir()) == []
