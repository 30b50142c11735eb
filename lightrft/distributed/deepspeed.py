"""DeepSpeed ZeRO behind the `Strategy` interface: the only file that imports deepspeed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lightrft.distributed.environment import quiet_start

quiet_start()

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from lightrft.distributed.collectives import world_size
from lightrft.distributed.strategy import OptimizerOptions, StepResult, TrainableModel, parameter_groups
from lightrft.errors import CheckpointError


@dataclass(frozen=True)
class DeepSpeedOptions:
    """`--zero_stage`, `--bf16`, `--adam_offload`; DeepSpeed's arithmetic asks for the micro-batch."""

    zero_stage: int = 2
    bf16: bool = False
    adam_offload: bool = False
    micro_batch_size: int = 1

    def to_config(self, max_norm: float) -> dict[str, Any]:
        """The JSON that `deepspeed.initialize` takes.

        Accumulation is ours (`backward(last=)`), so DeepSpeed is told that every micro-batch is a step.
        """
        zero: dict[str, Any] = {"stage": self.zero_stage}
        if self.adam_offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": get_accelerator().is_available()}
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": self.micro_batch_size,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": max_norm,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
        if self.bf16:
            # The norm is checked for NaN and infinity in bfloat16 too: a skipped step is ours to count.
            config["bf16"] = {"enabled": True, "check_grad_overflow": True}
        return config


def init_distributed(timeout: timedelta) -> torch.device:
    """Join the launcher's process group (one process stands alone) and choose this rank's device.

    Needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        deepspeed.init_distributed("nccl", timeout=timeout, verbose=False)
        return device
    # DeepSpeed's shared-memory collectives for the CPU compile for up to a minute at the first start and save
    # nothing at the sizes that the CPU is for.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", timeout=timeout, verbose=False)
    return torch.device("cpu")


class DeepSpeedModel:
    """A module under a DeepSpeed engine; see `TrainableModel` for the contract."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self.engine = engine
        self.module: nn.Module = engine.module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.engine(*args, **kwargs)

    def backward(self, loss: Tensor, *, last: bool, finite: bool) -> None:
        if not finite:
            # Gradients that ZeRO has already reduced can only be dropped by its own overflow path, so the
            # step is made to overflow: NaN reaches every gradient, `step` sees it on all ranks and skips.
            loss, last = loss * float("nan"), True
        self.engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages gradients over ranks; the loss is a share of a sum.
        self.engine.backward(loss * world_size(), scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepResult:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        skipped = bool(self.engine.optimizer.overflow)
        norm = self.engine.get_global_grad_norm()
        return StepResult(float("inf") if skipped else float(norm), skipped)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        # ZeRO 1 and 2 keep whole parameters on every rank.
        yield from ((name, p.detach()) for name, p in self.module.named_parameters())

    def state_dict(self) -> dict[str, Any]:
        """The fp32 master shard and Adam's moments of each parameter group, as plain tensors.

        DeepSpeed's own checkpoint pickles classes, which `torch.load(weights_only=True)` rightly refuses.
        """
        zero = self.engine.optimizer
        shards = zero.single_partition_of_fp32_groups
        return {
            "master": [s.detach().cpu() for s in shards],
            "adam": [{k: _to_cpu(v) for k, v in zero.optimizer.state.get(s, {}).items()} for s in shards],
            "module": {name: b.detach().cpu() for name, b in self.module.named_buffers()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        zero = self.engine.optimizer
        shards = zero.single_partition_of_fp32_groups
        sizes = [tuple(s.shape) for s in state["master"]]
        if sizes != [tuple(s.shape) for s in shards]:
            raise CheckpointError(
                f"the checkpoint's optimizer shards {sizes} do not fit this run's "
                f"{[tuple(s.shape) for s in shards]}: model, GPU count and --zero_stage must be the same"
            )
        for shard, saved, adam in zip(shards, state["master"], state["adam"], strict=True):
            shard.copy_(saved)
            # AdamW's step count stays on the CPU; the fused kernel wants it beside the moments.
            fused = bool(zero.optimizer.param_groups[0].get("fused"))
            zero.optimizer.state[shard] = {
                k: v.to(shard.device) if isinstance(v, Tensor) and (k != "step" or fused) else v
                for k, v in adam.items()
            }
        self._publish_master_weights()
        for name, buffer in self.module.named_buffers():
            buffer.copy_(state["module"][name])

    def _publish_master_weights(self) -> None:
        """Copy the master shards into the module's own flat weights and share them over ranks."""
        zero = self.engine.optimizer
        for i, shard in enumerate(zero.single_partition_of_fp32_groups):
            rank = torch.distributed.get_rank(group=zero.real_dp_process_group[i])
            parts = zero.parallel_partitioned_bit16_groups[i]
            parts[rank].copy_(shard)
            for source, part in enumerate(parts):
                torch.distributed.broadcast(part, source, group=zero.real_dp_process_group[i])


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


class DeepSpeedStrategy:
    """Places models and gives them ZeRO optimizers. Stages 1 and 2."""

    def __init__(self, device: torch.device, options: DeepSpeedOptions) -> None:
        self.device = device
        self.options = options
        self.dtype = torch.bfloat16 if options.bf16 else torch.float32

    def prepare_trainable(self, module: nn.Module, options: OptimizerOptions) -> TrainableModel:
        module.to(self.device)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=self._optimizer(module, options),
            config=self.options.to_config(options.max_norm),
            dist_init_required=False,
        )
        return DeepSpeedModel(engine)

    def _optimizer(self, module: nn.Module, options: OptimizerOptions) -> torch.optim.Optimizer:
        groups = parameter_groups(module, options)
        if self.options.adam_offload:
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            return DeepSpeedCPUAdam(groups, lr=0.0, betas=options.betas, eps=options.eps, adamw_mode=True)
        fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=0.0, betas=options.betas, eps=options.eps, fused=fused)

    def prepare_frozen(self, module: nn.Module) -> nn.Module:
        return module.to(self.device).eval().requires_grad_(False)
