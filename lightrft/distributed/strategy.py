"""What a training backend offers to the trainer; DeepSpeed and the plain single process stand behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class OptimizerOptions:
    """AdamW, as the flags say it. Weight decay spares biases and norms."""

    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_norm: float = 1.0
    eps: float = 1e-8


@dataclass(frozen=True)
class StepResult:
    """Outcome of one optimizer step, the same on every rank."""

    grad_norm: float  # before clipping, over all parameters and ranks; inf where the step was skipped
    skipped: bool  # a loss or gradient was not finite: nothing was updated


class TrainableModel(Protocol):
    """A module with its optimizer. Calling it runs the module's forward with gradients."""

    module: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def backward(self, loss: Tensor, *, last: bool, finite: bool) -> None:
        """Accumulate the gradient of `loss`, whose **sum over ranks** is the loss of the whole step.

        `last` marks the step's last micro-batch. `finite=False`, the same on all ranks, poisons the step: it
        must be the last micro-batch, and the following `step` skips and drops what was accumulated.
        """

    def step(self, learning_rate: float) -> StepResult:
        """Clip, update and clear the gradients."""

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, whole, under the module's own names. Collective: all ranks iterate together."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's share of master weights and optimizer state: nested dicts of tensors and numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse, bit for bit. The module's own weights follow from the master weights."""


class Strategy(Protocol):
    """How models are placed and trained."""

    device: torch.device
    dtype: torch.dtype

    def prepare_trainable(self, module: nn.Module, options: OptimizerOptions) -> TrainableModel:
        """Place `module` and give it an optimizer."""

    def prepare_frozen(self, module: nn.Module) -> nn.Module:
        """Place a module that only computes forward (the reference), without gradients."""


def parameter_groups(module: nn.Module, options: OptimizerOptions) -> list[dict[str, Any]]:
    """AdamW's groups: matrices with weight decay, vectors without; frozen parameters in neither."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [g for g in groups if g["params"]]
