"""An estimate of the memory of one rank, phase by phase, from config.json and flags alone."""

from __future__ import annotations

from dataclasses import dataclass

from lightrft.config.model_files import model_folder, read_config
from lightrft.config.model_shape import ModelShape, read_shape
from lightrft.config.resolve import Config

GIB = 1 << 30
PHASES = ("generate", "experience", "update")
# fp32 master weights and Adam's two moments; ZeRO keeps a master copy in fp32 training, too.
OPTIMIZER_BYTES = 12
# Activations that one layer keeps for its backward pass, per token, in units of hidden size and MLP width.
KEPT_HIDDEN, KEPT_MLP = 8, 4


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of one kind in each phase, in the order of `PHASES`."""

    name: str
    bytes: tuple[float, float, float]


@dataclass(frozen=True)
class MemoryPlan:
    """The estimate for the fullest rank; `limit` is the smallest GPU's memory (0: unknown or no GPU)."""

    shape: ModelShape
    rows: tuple[MemoryRow, ...]
    host_bytes: float  # optimizer states that --adam_offload keeps in the host's memory, per rank
    limit: int

    @property
    def totals(self) -> tuple[float, float, float]:
        columns = zip(*(row.bytes for row in self.rows), strict=True)
        generate, experience, update = (sum(column) for column in columns)
        return generate, experience, update


def estimate_memory(config: Config) -> MemoryPlan | None:
    """The estimate, or None where config.json is missing or describes an architecture without a formula."""
    shape = read_shape(read_config(model_folder(config.pretrain, config.hub)))
    if shape is None:
        return None
    rows = [*_weights(config, shape), _generation(config, shape), *_forward(config, shape)]
    limits = [gpu.memory_bytes for gpu in config.gpus] if config.on_gpu else []
    optimizer = OPTIMIZER_BYTES * shape.parameters / config.num_ranks
    return MemoryPlan(
        shape=shape,
        rows=tuple(row for row in rows if any(row.bytes)),
        host_bytes=optimizer if config.adam_offload else 0.0,
        limit=min(limits, default=0),
    )


def _width(config: Config) -> int:
    """Bytes of a weight and of an activation."""
    return 2 if config.bf16 else 4


def _weights(config: Config, shape: ModelShape) -> list[MemoryRow]:
    """Weights, gradients and optimizer states, as ZeRO shards them over all ranks."""
    stage = 3 if config.fsdp else config.zero_stage
    weights = shape.parameters * _width(config)
    placed = weights / (config.num_ranks if stage == 3 else 1)
    gradients = weights / (config.num_ranks if stage >= 2 else 1)
    optimizer = 0.0 if config.adam_offload else OPTIMIZER_BYTES * shape.parameters / config.num_ranks
    reference = placed if config.init_kl_coef > 0 else 0.0
    return [
        MemoryRow("policy weights", (placed, placed, placed)),
        MemoryRow("reference weights", (reference, reference, reference)),
        MemoryRow("optimizer states", (optimizer, optimizer, optimizer)),
        MemoryRow("gradients", (0.0, 0.0, gradients)),
    ]


def _generation(config: Config, shape: ModelShape) -> MemoryRow:
    """The KV cache of the policy module, or all that an engine takes."""
    if config.engine_type == "hf":
        cache = shape.cache_values_per_token * _width(config) * config.max_len
        return MemoryRow("KV cache", (cache * config.micro_rollout_batch_size, 0.0, 0.0))
    limit = min((gpu.memory_bytes for gpu in config.gpus), default=0)
    weights = shape.parameters * _width(config) / config.engine_tp_size
    taken = max(weights, config.engine_mem_util * limit)
    asleep = 0.0 if config.enable_engine_sleep else taken
    return MemoryRow(f"engine {config.engine_type}", (taken, asleep, asleep))


def _forward(config: Config, shape: ModelShape) -> list[MemoryRow]:
    """Activations and logits of one micro-batch whose every sequence is as long as allowed."""
    width, length = _width(config), config.max_len / config.sp_size
    layer = width * (KEPT_HIDDEN * shape.hidden + KEPT_MLP * shape.widest)  # bytes per token
    rollout, train = config.micro_rollout_batch_size * length, config.micro_train_batch_size * length
    kept = (
        width * shape.hidden * shape.layers + layer if config.gradient_checkpointing else layer * shape.layers
    )
    responses = config.generate_max_len
    # Logits, their fp32 copy, and with gradients as much again: 12 bytes a logit in bf16, as measured.
    logits = shape.vocab * responses
    scored = config.micro_rollout_batch_size * logits * (width + 4)
    trained = config.micro_train_batch_size * logits * 2 * (width + 4)
    if config.fused_linear_logprob:
        scored = trained = config.chunk_size * shape.vocab * 4
    return [
        MemoryRow("activations", (0.0, layer * rollout, kept * train)),
        MemoryRow("logits", (0.0, scored, trained)),
    ]
