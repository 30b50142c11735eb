"""Which GPUs this process may use, as NVML says (the driver's library): in milliseconds, without torch."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"
NVML_SUCCESS = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU. `index` is its number on the host, whatever CUDA_VISIBLE_DEVICES hides."""

    index: int
    name: str
    memory_bytes: int  # 0: unknown
    capability: tuple[int, int]
    uuid: str = ""

    @property
    def has_bf16(self) -> bool:
        return self.capability >= (8, 0)


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_gpus(environ: Mapping[str, str], library: Any = None) -> tuple[Gpu, ...]:
    """The visible GPUs, in CUDA's order; none where there is no NVIDIA driver.

    `library` stands in for NVML in tests.
    """
    if library is None:
        try:
            library = ctypes.CDLL(NVML)
        except OSError:
            return ()
    if library.nvmlInit_v2() != NVML_SUCCESS:  # a driver that does not answer: torch would see no GPU either
        return ()
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        gpus = [_read_gpu(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()
    return visible(tuple(gpus), environ.get("CUDA_VISIBLE_DEVICES"))


def _read_gpu(library: Any, index: int) -> Gpu:
    handle, memory = ctypes.c_void_p(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
    library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96))
    return Gpu(index, name.value.decode(), memory.total, (major.value, minor.value), uuid.value.decode())


def visible(gpus: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """What CUDA_VISIBLE_DEVICES leaves of `gpus`. As in CUDA, the first entry without a GPU ends the list."""
    if setting is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.startswith("MIG-") and gpus:  # a slice; its size is not the card's, so it stays unknown
            found = [replace(gpus[0], memory_bytes=0, uuid=entry)]
        elif entry.isdigit():
            found = [g for g in gpus if g.index == int(entry)]
        else:
            found = [g for g in gpus if entry and g.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def torch_is_cpu_build() -> bool:
    """True where the installed torch cannot use a GPU. Reads its version file; does not import it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    with suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text()
        return "cuda: Optional[str] = None" in text and "hip: Optional[str] = None" in text
    return False
