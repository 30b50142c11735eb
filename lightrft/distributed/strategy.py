"""What a training backend offers to the trainer; DeepSpeed and the plain single process stand behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
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

    def parameter_buckets(self, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
        """Every parameter once, whole, under the module's own names and in its order, some at a time.

        A bucket holds at most `max_bytes`; a larger parameter has one to itself. The tensors are to be read
        only, and only until the next bucket is asked for. Collective: all ranks iterate together.
        """

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The same, one parameter at a time."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's share of master weights and optimizer state: nested dicts of tensors and numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse, bit for bit. The module's own weights follow from the master weights."""


class Weights(Protocol):
    """Something whose weights can be read out: a `TrainableModel`, or a changed view of one."""

    def parameter_buckets(self, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
        """See `TrainableModel.parameter_buckets`."""


class Parked(Protocol):
    """A frozen module that computes only within `with parked() as module:`."""

    def __call__(self) -> AbstractContextManager[nn.Module]: ...


class Strategy(Protocol):
    """How models are placed and trained."""

    device: torch.device
    dtype: torch.dtype

    def loading(self) -> AbstractContextManager[None]:
        """Models are loaded within: where training shards them, none is ever whole on a device.

        What comes out may hold empty parameters until it is prepared. Collective there.
        """

    def prepare_trainable(self, module: nn.Module, options: OptimizerOptions) -> TrainableModel:
        """Place `module` and give it an optimizer."""

    def prepare_frozen(self, module: nn.Module) -> nn.Module:
        """Place a module that only computes forward (the reference), without gradients."""

    def prepare_parked(self, module: nn.Module) -> Parked:
        """The same for a module that seldom computes (a reward model).

        Where training shards models, it is sharded. Elsewhere it waits in the host's memory.
        """


def parameter_groups(module: nn.Module, options: OptimizerOptions) -> list[dict[str, Any]]:
    """AdamW's groups: matrices with weight decay, vectors without; frozen parameters in neither."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if len(whole_shape(p)) >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trainable if len(whole_shape(p)) < 2], "weight_decay": 0.0},
    ]
    return [g for g in groups if g["params"]]


def whole_shape(parameter: Tensor) -> torch.Size:
    """The shape of the whole parameter: ZeRO-3 leaves an empty tensor in its place and notes the shape."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


BUCKET_BYTES = 512 << 20  # of what is gathered at once where no flag says it


def in_buckets(
    parameters: Iterable[tuple[str, Tensor]], max_bytes: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """`parameters` in their order, cut into lists of at most `max_bytes`; see `parameter_buckets`."""
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, parameter in parameters:
        size = whole_shape(parameter).numel() * parameter.element_size()
        if bucket and held + size > max_bytes:
            yield bucket
            bucket, held = [], 0
        bucket.append((name, parameter))
        held += size
    if bucket:
        yield bucket
