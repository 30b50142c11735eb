"""Around SGLang's processes, and what runs inside them: no SGLang is needed."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightrft.rollout import sglang_processes
from lightrft.rollout.checksum import hash_all


def test_the_launcher_is_hidden_from_the_engine_and_all_is_put_back(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    before, method = dict(os.environ), multiprocessing.get_start_method(allow_none=True)
    with sglang_processes.private_environment():
        assert "RANK" not in os.environ
        assert "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
        os.environ["NCCL_CUMEM_ENABLE"] = "0"
        multiprocessing.set_start_method("spawn", force=True)
    assert dict(os.environ) == before
    assert multiprocessing.get_start_method(allow_none=True) == method


def test_the_environment_is_put_back_after_a_start_that_fails(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(RuntimeError, match="start failed"), sglang_processes.private_environment():
        raise RuntimeError("start failed")
    assert os.environ["MASTER_PORT"] == "29500"


def test_a_port_that_is_taken_is_passed_over():
    first = sglang_processes.free_port(23450)
    with sglang_processes.socket.socket() as taken:
        taken.bind(("", first))
        taken.listen()
        assert sglang_processes.free_port(first) > first


def test_the_launcher_can_still_end_this_process():
    loop = asyncio.new_event_loop()
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGQUIT)}

    def claim():
        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, lambda: None)

    manager = SimpleNamespace(auto_create_handle_loop=claim)
    try:
        sglang_processes.keep_signals(SimpleNamespace(loop=loop, tokenizer_manager=manager))
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        assert signal.getsignal(signal.SIGQUIT) is sglang_processes.end_with_engine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        loop.close()


def test_what_runs_inside_the_engine_can_be_found_by_name_and_does_its_work(tmp_path):
    name = sglang_processes.loader_name(sglang_processes.write_hashes)
    module, _, function = name.rpartition(".")
    model = nn.Linear(2, 3)
    model.config = SimpleNamespace(num_key_value_heads=2)
    path = tmp_path / "hashes.json"
    getattr(sys.modules[module], function)(model, [(str(path), torch.zeros(1))])
    assert json.loads(path.read_text()) == {"hashes": hash_all(model.named_parameters()), "kv_heads": 2}


def test_seeding_inside_the_engine_decides_its_draws():
    with torch.random.fork_rng(devices=[]):
        draws = []
        for seed in (5, 2**63 - 1, 5):
            sglang_processes.seed_generators(nn.Linear(1, 1), [("seed", torch.tensor(seed))])
            draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[2] != draws[1]
