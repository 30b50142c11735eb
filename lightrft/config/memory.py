"""An estimate of the memory of one rank, phase by phase, from config.json and flags alone."""

from __future__ import annotations

from dataclasses import dataclass

from lightrft.config.engines import engine_dtype, engine_sleeps
from lightrft.config.model_files import model_folder, read_config
from lightrft.config.model_shape import ModelShape, read_shape
from lightrft.config.resolve import Config

GIB = 1 << 30
PHASES = ("generate", "experience", "update")
# fp32 master weights and Adam's two moments; ZeRO keeps a master copy in fp32 training, too.
OPTIMIZER_BYTES = 12
# Activations that one layer keeps for its backward pass, per token, in units of hidden size and MLP width.
KEPT_HIDDEN, KEPT_MLP = 8, 4
ZERO3_LIVE = (
    1_000_000_000  # parameters that DeepSpeed keeps gathered for their next use, unless told otherwise
)
ENGINE_STEP = 256 << 20  # bytes that any engine needs beside weights and cache: activations, buffers
CPU_SEQUENCES = 64  # of full length, for which the vLLM adapter gives a CPU's cache room


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
    rows = [*_weights(config, shape), *_generation(config, shape), *_forward(config, shape)]
    optimizer = OPTIMIZER_BYTES * shape.parameters / config.num_ranks
    return MemoryPlan(
        shape=shape,
        rows=tuple(row for row in rows if any(row.bytes)),
        host_bytes=optimizer if config.adam_offload else 0.0,
        limit=smallest_gpu(config),
    )


def smallest_gpu(config: Config) -> int:
    """Bytes of memory of the smallest GPU that the run is on; 0 where that is not known."""
    return min((gpu.memory_bytes for gpu in config.gpus), default=0) if config.on_gpu else 0


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
    gathered = _gathered(config, shape) * _width(config) if stage == 3 and config.num_ranks > 1 else 0.0
    return [
        MemoryRow("policy weights", (placed, placed, placed)),
        MemoryRow("reference weights", (reference, reference, reference)),
        MemoryRow("gathered weights", (0.0, gathered, gathered)),
        MemoryRow("optimizer states", (optimizer, optimizer, optimizer)),
        MemoryRow("gradients", (0.0, 0.0, gradients)),
    ]


def _gathered(config: Config, shape: ModelShape) -> int:
    """Parameters that are whole on every rank at once while a sharded model computes."""
    largest = max(shape.layer_parameters, shape.vocab * shape.hidden)
    return largest if config.fsdp else max(largest, min(shape.parameters, ZERO3_LIVE))


def _generation(config: Config, shape: ModelShape) -> list[MemoryRow]:
    """The KV cache of the policy module, or all that an engine takes."""
    if config.engine_type != "hf":
        taken = _engine_bytes(config, shape)
        asleep = 0.0 if engine_sleeps(config) else taken
        return [MemoryRow(f"engine {config.engine_type}", (taken, asleep, asleep))]
    cache = shape.cache_values_per_token * _width(config) * config.max_len
    # ZeRO-3 shards the policy, so that a whole copy generates beside it.
    copy = float(shape.parameters * _width(config)) if config.zero_stage == 3 and not config.fsdp else 0.0
    return [
        MemoryRow("engine hf", (copy, copy, copy)),
        MemoryRow("KV cache", (cache * config.micro_rollout_batch_size, 0.0, 0.0)),
    ]


def _engine_bytes(config: Config, shape: ModelShape) -> float:
    """What the engine takes of one rank's memory while it is awake."""
    least = engine_minimum(config, shape, config.engine_tp_size)
    if config.on_gpu:
        return max(least, float(config.engine_mem_util) * smallest_gpu(config))
    sequences = min(CPU_SEQUENCES, config.engine_max_num_seqs or CPU_SEQUENCES)
    return least + (sequences - 1) * _sequence_bytes(config, shape, config.engine_tp_size)


def engine_minimum(config: Config, shape: ModelShape, tp_size: int) -> float:
    """The least memory in which an engine over `tp_size` ranks starts: weights, one sequence, a step."""
    weights = float(shape.parameters * _engine_width(config) / tp_size)
    return weights + _sequence_bytes(config, shape, tp_size) + ENGINE_STEP


def _sequence_bytes(config: Config, shape: ModelShape, tp_size: int) -> float:
    """One rank's share of the KV cache of a sequence of full length."""
    cache = shape.cache_values_per_token * _engine_width(config) * config.max_len
    return float(cache / min(tp_size, shape.kv_heads))


def _engine_width(config: Config) -> int:
    return 4 if engine_dtype(config) == "float32" else 2


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
