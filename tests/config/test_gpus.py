"""GPU facts through a stand-in for NVML: the calls write into the caller's buffers as the library does."""

import importlib.util
from types import SimpleNamespace

import pytest

from lightrft.config import gpus
from lightrft.config.gpus import Gpu, read_gpus, torch_is_cpu_build, visible

CARDS = [
    ("NVIDIA A100", 80 << 30, (8, 0)),
    ("Tesla V100", 32 << 30, (7, 0)),
    ("NVIDIA H200", 140 << 30, (9, 0)),
]


class FakeNvml:
    """Three cards behind NVML's C signatures."""

    def __init__(self, init_code=0):
        self.init_code = init_code
        self.open = 0

    def nvmlInit_v2(self):
        self.open += self.init_code == 0
        return self.init_code

    def nvmlShutdown(self):
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(CARDS)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total = CARDS[handle.value - 1][1]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = CARDS[handle.value - 1][2]
        return 0

    def nvmlDeviceGetName(self, handle, name, length):
        name.value = CARDS[handle.value - 1][0].encode()
        return 0

    def nvmlDeviceGetUUID(self, handle, uuid, length):
        uuid.value = f"GPU-{handle.value}f00".encode()
        return 0


def test_facts_of_each_card():
    library = FakeNvml()
    cards = read_gpus({}, library)
    assert [(g.index, g.name, g.memory_bytes, g.capability) for g in cards] == [
        (i, *card) for i, card in enumerate(CARDS)
    ]
    assert [g.has_bf16 for g in cards] == [True, False, True]
    assert library.open == 0


def test_no_driver_and_a_driver_that_does_not_answer(monkeypatch):
    assert read_gpus({}, FakeNvml(init_code=9)) == ()
    monkeypatch.setattr(gpus, "NVML", "libthere-is-no-such-library.so")
    assert read_gpus({}) == ()


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-2,0", [1, 0]),
        ("1,7,0", [1]),
        ("1,-1,0", [1]),
        ("", []),
        ("-1", []),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices(setting, indices):
    cards = tuple(Gpu(i, *CARDS[i], f"GPU-{i + 1}f00") for i in range(3))
    assert [gpu.index for gpu in visible(cards, setting)] == indices


def test_a_slice_of_a_card_is_a_gpu_of_unknown_size():
    cards = (Gpu(0, *CARDS[2], "GPU-1"),)
    (slice_of_it,) = visible(cards, "MIG-3f")
    assert (slice_of_it.memory_bytes, slice_of_it.has_bf16) == (0, True)


@pytest.mark.parametrize(
    ("version", "is_cpu"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\n", False),
    ],
)
def test_a_torch_without_cuda_is_told_from_its_version_file(monkeypatch, tmp_path, version, is_cpu):
    (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert torch_is_cpu_build() is is_cpu
