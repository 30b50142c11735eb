"""Frozen modules that wait in the host's memory until they are asked to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ParkedModule:
    """A module in the host's memory, on `device` within `with parked() as module:`; see `Parked`.

    Frozen weights never change: they are copied to the device and, at the end, only forgotten there. For a
    GPU the host's copy is in pinned pages, from which copies run at the speed of the bus.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module.to("cpu").eval().requires_grad_(False)
        self._device = device
        if device.type == "cuda":
            for tensor in _tensors(module):
                tensor.data = tensor.data.pin_memory()

    @contextmanager
    def __call__(self) -> Iterator[nn.Module]:
        if self._device.type == "cpu":
            yield self._module
            return
        waiting = [(tensor, tensor.data) for tensor in _tensors(self._module)]
        try:
            for tensor, data in waiting:
                tensor.data = data.to(self._device, non_blocking=True)
            yield self._module
        finally:
            for tensor, data in waiting:
                tensor.data = data


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*module.parameters(), *module.buffers()]
