"""One process, no sharding, plain PyTorch: the oracle that other backends are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightrft.distributed.parking import ParkedModule
from lightrft.distributed.strategy import (
    BUCKET_BYTES,
    OptimizerOptions,
    Parked,
    StepResult,
    TrainableModel,
    in_buckets,
    parameter_groups,
)


class LocalModel:
    """A module and AdamW in one process; see `TrainableModel` for the contract."""

    def __init__(self, module: nn.Module, options: OptimizerOptions) -> None:
        self.module = module
        self.options = options
        self.optimizer = torch.optim.AdamW(
            parameter_groups(module, options), lr=0.0, betas=options.betas, eps=options.eps
        )
        self._poisoned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: Tensor, *, last: bool, finite: bool) -> None:
        if finite:
            loss.backward()
        else:
            self._poisoned = True

    def step(self, learning_rate: float) -> StepResult:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.options.max_norm or float("inf"))
        skipped = self._poisoned or not bool(torch.isfinite(norm))
        if not skipped:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._poisoned = False
        return StepResult(float("inf") if skipped else float(norm), skipped)

    def parameter_buckets(self, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
        yield from in_buckets(((n, p.detach()) for n, p in self.module.named_parameters()), max_bytes)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for bucket in self.parameter_buckets(BUCKET_BYTES):
            yield from bucket

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])


class LocalStrategy:
    """Everything on one device."""

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device = torch.device(device)
        self.dtype = dtype

    def loading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare_trainable(self, module: nn.Module, options: OptimizerOptions) -> TrainableModel:
        return LocalModel(module.to(self.device), options)

    def prepare_frozen(self, module: nn.Module) -> nn.Module:
        return module.to(self.device).eval().requires_grad_(False)

    def prepare_parked(self, module: nn.Module) -> Parked:
        return ParkedModule(module, self.device)
