"""What the process says about its own memory."""

from __future__ import annotations

import torch

from lightrft.observability.memory import memory_report, phase_peaks

MIB = 2**20


def test_the_host_sees_a_tensor_come_and_stays_below_its_peak() -> None:
    before = memory_report()
    block = torch.ones(64 * MIB // 4)  # 64 MiB, written
    after = memory_report()
    assert after["host/rss"] - before["host/rss"] > 48 * MIB
    assert after["host/peak_rss"] >= after["host/rss"] - MIB
    assert block[0] == 1


def test_a_report_names_the_gpu_only_where_there_is_one() -> None:
    names = {name.partition("/")[0] for name in memory_report()}
    assert names == ({"host", "cuda"} if torch.cuda.is_available() else {"host"})


def test_the_memory_of_a_phase_is_taken_inside_it() -> None:
    peaks: dict[str, float] = {}
    with phase_peaks("small", peaks):
        pass
    with phase_peaks("large", peaks):
        block = torch.ones(64 * MIB // 4)
    assert peaks["memory/large/host_rss"] - peaks["memory/small/host_rss"] > 48 * MIB
    assert block[-1] == 1
