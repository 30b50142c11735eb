"""`--enable_ema`: an exponential moving average of the policy's weights, to evaluate and publish.

It is kept in float32 in the memory of rank 0's host, out of the way of training: 4 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lightrft.distributed.collectives import rank
from lightrft.distributed.strategy import TrainableModel
from lightrft.errors import CheckpointError, ConfigError

SHOWN_NAMES = 3


class EMA:
    """ema = beta * ema + (1 - beta) * weights, after each optimizer step.

    All ranks call `start` and `update`, as gathering whole weights is collective; ranks other than 0 keep
    nothing, and their `state_dict` and `parameters` are empty.
    """

    def __init__(self, beta: float) -> None:
        if not 0 <= beta < 1:
            raise ConfigError(f"--ema_beta {beta:g}: the share of the old average is in [0, 1): use 0.992")
        self.beta = beta
        self._weights: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}  # of the policy's own parameters

    def start(self, policy: TrainableModel) -> None:
        """Begin at the policy's present weights. Without it the first update does."""
        self._weights = {}
        self.update(policy)

    @torch.no_grad()
    def update(self, policy: TrainableModel) -> None:
        """Take in the policy's present weights. Collective."""
        for name, parameter in policy.full_parameters():
            if rank() != 0:
                continue
            self._dtypes[name] = parameter.dtype
            if name in self._weights:
                weights = parameter.to("cpu", torch.float32)
                self._weights[name].lerp_(weights, 1 - self.beta)
            else:
                self._weights[name] = parameter.to("cpu", torch.float32, copy=True)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The averages under the policy's own names and in its own dtypes, as an export writes them."""
        for name, average in self._weights.items():
            yield name, average.to(self._dtypes.get(name, torch.float32))

    def state_dict(self) -> dict[str, Any]:
        """The averages, in float32."""
        return {"weights": dict(self._weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved average; the policy's present weights are forgotten.

        Raises:
            CheckpointError: the state is of another model than the one that `start` saw.
        """
        saved: dict[str, Tensor] = state["weights"]
        shapes, own = _shapes(saved), _shapes(self._weights)
        wrong = [name for name in sorted(shapes.keys() | own.keys()) if shapes.get(name) != own.get(name)]
        if own and wrong:
            shown = ", ".join(
                f"{name}: {shapes.get(name, 'missing')} in the checkpoint, {own.get(name, 'missing')} here"
                for name in wrong[:SHOWN_NAMES]
            )
            raise CheckpointError(f"the checkpoint's average is of another model: {shown}")
        self._weights = {name: weights.to("cpu", torch.float32, copy=True) for name, weights in saved.items()}


def _shapes(weights: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}
