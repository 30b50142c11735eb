"""DeepSpeed ZeRO behind the `Strategy` interface: the only file that imports deepspeed."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from typing import Any

from lightrft.distributed.environment import quiet_start

quiet_start()

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero import partition_parameters
from torch import Tensor, nn
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from lightrft.distributed.collectives import world_size
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
from lightrft.distributed.zero_state import load_state, save_state


@dataclass(frozen=True)
class DeepSpeedOptions:
    """`--zero_stage`, `--bf16`, `--adam_offload`; DeepSpeed's arithmetic asks for the micro-batch.

    Under ZeRO-3, parameters of up to `persistent_numel` elements stay whole on every rank between steps.
    """

    zero_stage: int = 2
    bf16: bool = False
    adam_offload: bool = False
    micro_batch_size: int = 1
    persistent_numel: int = 100_000

    def to_config(self, max_norm: float) -> dict[str, Any]:
        """The JSON that `deepspeed.initialize` takes.

        Accumulation is ours (`backward(last=)`), so DeepSpeed is told that every micro-batch is a step.
        """
        zero: dict[str, Any] = {"stage": self.zero_stage}
        if self.zero_stage == 3:
            zero["stage3_param_persistence_threshold"] = self.persistent_numel
            # It would replace torch's `linear` for the whole process, an engine's included, and round biased
            # layers otherwise. What it saves, weights held from forward to backward, checkpointing saves too.
            zero["memory_efficient_linear"] = False
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
    # Of collectives that DeepSpeed calls by the names that they had before torch 2.13, at every call.
    warnings.filterwarnings("ignore", "`torch.distributed.\\w+_tensor` is deprecated", FutureWarning)
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
        # In 0.18, float32 and stage 3 are not looked at for NaN and infinity; what is found here is heeded.
        self.engine.optimizer.check_overflow()
        self.engine.step()
        skipped = bool(self.engine.optimizer.overflow)
        norm = self.engine.get_global_grad_norm()
        return StepResult(float("inf") if skipped else float(norm), skipped)

    def parameter_buckets(self, max_bytes: int) -> Generator[list[tuple[str, Tensor]], None, None]:
        for named in in_buckets(self.module.named_parameters(), max_bytes):
            # Stages 1 and 2 hold whole parameters, which this leaves as they are.
            with deepspeed.zero.GatheredParameters([p for _, p in named]):
                bucket = [(name, p.detach()) for name, p in named]
                yield bucket
                # A caller's loop variable would keep this bucket in memory while the next is gathered.
                bucket.clear()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        with closing(self.parameter_buckets(BUCKET_BYTES)) as buckets:
            for bucket in buckets:
                yield from bucket

    def state_dict(self) -> dict[str, Any]:
        return save_state(self.engine.optimizer, self.module)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_state(self.engine.optimizer, self.module, state)


class _LoadingConfig:
    """What transformers asks while it loads a model: shards or not, and DeepSpeed's config.

    Its own HfDeepSpeedConfig says the same and needs accelerate.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_zero3(self) -> bool:
        return True


@contextmanager
def _tensors_keep_their_dtype() -> Iterator[None]:
    """Keep `zero.Init` from casting every new float tensor to the training dtype; it still places them.

    transformers makes the parameters in that dtype by itself, and what it makes in float32 it means so:
    rotary frequencies in bfloat16 turn position 1000 by radians.
    """

    def placed(
        create: Callable[..., Tensor], target_fp_dtype: Any, target_device: Any
    ) -> Callable[..., Tensor]:
        @wraps(create)
        def make(*args: Any, **kwargs: Any) -> Tensor:
            if kwargs.get("device") is None:
                kwargs["device"] = target_device
            return create(*args, **kwargs)

        return make

    name = "zero_wrapper_for_fp_tensor_constructor"  # the same in 0.18.4 to 0.19.8
    casting = getattr(partition_parameters, name)
    setattr(partition_parameters, name, placed)
    try:
        yield
    finally:
        setattr(partition_parameters, name, casting)


@contextmanager
def _buffers_keep_their_dtype(module: nn.Module) -> Iterator[None]:
    """DeepSpeed 0.18 casts a module's buffers together with its parameters, rotary frequencies too."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        buffer.data = before[name]


class DeepSpeedStrategy:
    """Places models and gives them ZeRO optimizers. Stages 1, 2 and 3."""

    def __init__(self, device: torch.device, options: DeepSpeedOptions) -> None:
        self.device = device
        self.options = options
        self.dtype = torch.bfloat16 if options.bf16 else torch.float32
        self.sharded = options.zero_stage == 3
        self._frozen_engines: list[deepspeed.DeepSpeedEngine] = []

    @contextmanager
    def loading(self) -> Iterator[None]:
        if not self.sharded:
            yield
            return
        config = _LoadingConfig(self.options.to_config(max_norm=0.0))
        set_hf_deepspeed_config(config)
        try:
            with _tensors_keep_their_dtype():
                yield
        finally:
            # transformers looks there at every load and `generate` of this process.
            unset_hf_deepspeed_config()

    def prepare_trainable(self, module: nn.Module, options: OptimizerOptions) -> TrainableModel:
        module.to(self.device)
        with _buffers_keep_their_dtype(module):
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
        module.to(self.device).requires_grad_(False)
        if self.sharded:
            # Without an optimizer DeepSpeed only hangs hooks on the module, which gather each layer for its
            # own forward. They go when the engine does.
            options = replace(self.options, adam_offload=False)
            with _buffers_keep_their_dtype(module):
                engine, *_ = deepspeed.initialize(
                    model=module, config=options.to_config(max_norm=0.0), dist_init_required=False
                )
            self._frozen_engines.append(engine)
        return module.eval()

    def prepare_parked(self, module: nn.Module) -> Parked:
        if not self.sharded:
            return ParkedModule(module, self.device)
        sharded = self.prepare_frozen(module)
        return lambda: nullcontext(sharded)
