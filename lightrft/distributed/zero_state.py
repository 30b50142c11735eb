"""What a ZeRO optimizer must remember, as plain tensors and back. Knows DeepSpeed's objects, not its import.

DeepSpeed's own checkpoints pickle classes, which `torch.load(weights_only=True)` rightly refuses.

`zero` is `engine.optimizer`. All stages keep a flat fp32 master shard for each parameter group, which the
base optimizer's state hangs on. They differ in the weights that the forward uses: stages 1 and 2 have them
whole, in one flat tensor a group; stage 3 has this rank's shards, and whole copies of some that outlive a
step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightrft.errors import CheckpointError


def save_state(zero: Any, module: nn.Module) -> dict[str, Any]:
    """This rank's master shards, Adam's moments of each, and the module's buffers, on the CPU."""
    masters = _masters(zero)
    return {
        "master": [m.detach().cpu() for m in masters],
        "adam": [{k: _to_cpu(v) for k, v in zero.optimizer.state.get(m, {}).items()} for m in masters],
        "module": {name: b.detach().cpu() for name, b in module.named_buffers()},
    }


@torch.no_grad()
def load_state(zero: Any, module: nn.Module, state: dict[str, Any]) -> None:
    """The inverse of `save_state`; the module's weights follow from the masters. Collective.

    Raises:
        CheckpointError: the shards are of another model, GPU count or stage.
    """
    masters = _masters(zero)
    sizes, own = ([tuple(m.shape) for m in shards] for shards in (state["master"], masters))
    if sizes != own:
        raise CheckpointError(
            f"the checkpoint's optimizer shards {sizes} do not fit this run's {own}: "
            "model, GPU count and --zero_stage must be the same"
        )
    for master, saved, adam in zip(masters, state["master"], state["adam"], strict=True):
        master.copy_(saved)
        zero.optimizer.state[master] = _placed(adam, master.device, zero.optimizer)
    if _is_sharded(zero):
        _publish_to_shards(zero, module)
    else:
        _publish_to_whole_weights(zero)
    for name, buffer in module.named_buffers():
        buffer.copy_(state["module"][name])


def _is_sharded(zero: Any) -> bool:
    return hasattr(zero, "fp32_partitioned_groups_flat")


def _masters(zero: Any) -> list[Tensor]:
    masters = zero.fp32_partitioned_groups_flat if _is_sharded(zero) else zero.single_partition_of_fp32_groups
    return list(masters)


def _placed(adam: dict[str, Any], device: torch.device, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """AdamW's step count stays on the CPU; the fused kernel wants it beside the moments."""
    fused = bool(optimizer.param_groups[0].get("fused"))
    return {
        k: v.to(device) if isinstance(v, Tensor) and (k != "step" or fused) else v for k, v in adam.items()
    }


def _publish_to_whole_weights(zero: Any) -> None:
    """Copy the masters into the module's own flat weights and share them over ranks."""
    for i, master in enumerate(zero.single_partition_of_fp32_groups):
        group = zero.real_dp_process_group[i]
        parts = zero.parallel_partitioned_bit16_groups[i]
        parts[dist.get_rank(group=group)].copy_(master)
        for source, part in enumerate(parts):
            dist.broadcast(part, source, group=group)


def _publish_to_shards(zero: Any, module: nn.Module) -> None:
    """Copy the masters into this rank's shards, and drop what was gathered from the old ones.

    Small parameters stay whole between steps; the next forward gathers them anew. In fp32 a shard may be its
    own master.
    """
    for master, shard in zip(
        zero.fp32_partitioned_groups_flat, zero.fp16_partitioned_groups_flat, strict=True
    ):
        shard.copy_(master)
    for parameter in module.parameters():
        parameter.partition()  # type: ignore[attr-defined]  # ZeRO-3 gives it to parameters


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
