"""`--engine_type sglang`: SGLang in processes of its own, on the trainer's GPUs. Only here it is imported.

     ranks of a group ──prompts──► leader ──requests──► SGLang's processes, one on the GPU of each rank
            └──────────── weights, each rank's own copy, over CUDA IPC ──────────────────┘

The leader of a group (its first rank) starts the processes and speaks to them; the others hand it prompts and
get their responses back. Weights travel a bucket at a time, as one flat tensor that both sides see. SGLang
0.5.13 and newer, on NVIDIA GPUs.

What SGLang's own interface lacks runs inside its processes as a "weight loader" of ours (`load_format` names
a function): seeding the generators, and hashing the weights that a process holds.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from lightrft.distributed.strategy import Weights
from lightrft.errors import EngineError
from lightrft.rollout.base import EngineOptions, Response, SamplingOptions, as_rollouts
from lightrft.rollout.groups import EngineGroup
from lightrft.rollout.hf import sample_seed
from lightrft.rollout.process import advice, free_cached_memory
from lightrft.rollout.sglang_processes import (
    free_port,
    ignore_signal,
    keep_signals,
    loader_name,
    private_environment,
    seed_generators,
    write_hashes,
)
from lightrft.rollout.sglang_requests import (
    Generation,
    batch_limits,
    static_fraction,
)
from lightrft.rollout.weight_sync import Bucket, Held, WeightSync
from lightrft.types import Prompt, Rollout

FIRST_PORT = 20000  # below the range that systems hand out by themselves
CONTEXT_MARGIN = 8  # tokens beyond max_len: SGLang keeps up to 6 positions of a context back
OLDEST = "0.5.13"  # of the versions whose memory tags, weight loaders and requests are known to fit
IDLE_SECONDS = 60.0  # for the engine's last step to end after the last response
WEIGHTS = ["weights"]
LATER = ["kv_cache", "cuda_graph"]  # memory that only generating needs
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
_DOING = {
    "start": "starting the engine",
    "sleep": "putting the engine to sleep",
    "wake": "waking the engine",
    "sync": "the weight sync",
    "generate": "generation",
}


def sglang_version() -> str:
    """Of the installed distribution.

    Raises:
        EngineError: there is none, or it is older than `OLDEST`.
    """
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise EngineError(
            "sglang is not installed: pip install 'lightrft[sglang]', or use --engine_type vllm or hf"
        ) from None
    if Version(found) < Version(OLDEST):
        raise EngineError(f"SGLang {found} is too old: pip install 'sglang>={OLDEST}'")
    return found


class SGLangEngine:
    """See `RolloutEngine` for the contract.

    `end_ids` end a response; `device` is this rank's GPU, and the GPUs of a group's ranks are consecutive.

    A generation begins with seeded generators, so its draws do not hang on earlier ones. Which requests meet
    in a batch is up to timing, though: the same draws again need `--engine_kwargs
    '{"enable_deterministic_inference": true}'`, where every sample has a stream of its own, for some speed.
    """

    def __init__(
        self,
        options: EngineOptions,
        tokenizer: Any,
        end_ids: set[int],
        group: EngineGroup,
        device: torch.device,
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.end_ids = sorted(end_ids)
        self.group = group
        self.device = device
        self.policy_version = 0
        self.on_progress: Callable[[int, int], None] | None = None
        self.can_sleep = options.sleep
        self.version = sglang_version()
        self._awake = True
        self._weights_awake = True
        self._has_weights = False
        name = f"SGLang {self.version}"
        self._sync = WeightSync(options.dtype, options.bucket_bytes, options.check_every, name)
        self._engine = self._build()

    # -- start and end

    def _build(self) -> Any:
        """The engine on the leader, None on the other ranks. Collective."""
        if self.device.type != "cuda":
            raise EngineError(f"--engine_type sglang needs an NVIDIA GPU, not {self.device}: use vllm or hf")
        free_cached_memory(self.device)
        self.group.gather(None)  # all ranks have freed theirs
        engine = None
        if self.group.is_leader:
            with self._explained("start"), private_environment():
                import sglang

                engine = sglang.Engine(**self._arguments())
                keep_signals(engine)
        self.group.gather(None)
        return engine

    def _arguments(self) -> dict[str, Any]:
        o, gpu = self.options, self.device.index or 0
        free, total = torch.cuda.mem_get_info(self.device)
        arguments: dict[str, Any] = {
            "model_path": o.model,
            "dtype": str(o.dtype).removeprefix("torch."),
            "load_format": "dummy",
            "skip_tokenizer_init": True,  # token ids in, token ids out
            "trust_remote_code": o.trust_remote_code,
            "tp_size": o.tensor_parallel_size,
            "base_gpu_id": gpu,
            "nccl_port": free_port(FIRST_PORT + 100 * gpu),
            "mem_fraction_static": static_fraction(o.memory_share, free, total),
            "context_length": o.max_len + CONTEXT_MARGIN,
            "random_seed": o.seed + self.group.index,
            "enable_memory_saver": self.can_sleep,
            "custom_weight_loader": [loader_name(seed_generators), loader_name(write_hashes)],
            "custom_sigquit_handler": ignore_signal,  # a failing start is told by an exception
            "log_level": "error",
        }
        return arguments | batch_limits(o) | dict(o.kwargs)

    def start(self, policy: Weights) -> None:
        self._push(policy)

    def close(self) -> None:
        self._awake = False
        if self._engine is not None:
            self._engine.shutdown()  # ends every child of this process
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        self._engine = None
        free_cached_memory(self.device)

    # -- memory

    def wake(self) -> None:
        if self._awake:
            return
        if not self._has_weights:
            raise RuntimeError(
                "the engine gave its weights up when it went to sleep: sync_weights comes first"
            )
        if self.can_sleep:
            self._resume(LATER)
        self._awake = True

    def sleep(self, weights_change: bool = True) -> None:
        if not self._awake:
            return
        self._awake = False
        if not self.can_sleep:
            return
        # SGLang discards the weights that it gives back, so they go only where others follow.
        tags = LATER + WEIGHTS if weights_change else LATER
        with self._explained("sleep"):
            self._forget_caches()  # and waits until the engine is idle, as giving back demands
            if self._engine is not None:
                self._engine.release_memory_occupation(tags=tags)
        if weights_change:
            self._weights_awake = self._has_weights = False

    def _resume(self, tags: list[str]) -> None:
        free_cached_memory(self.device)
        self.group.gather(None)  # the engine takes memory on the GPUs of all ranks
        with self._explained("wake"):
            if self._engine is not None:
                self._engine.resume_memory_occupation(tags=tags)

    # -- weights

    def sync_weights(self, policy: Weights) -> None:
        self._push(policy)
        self.policy_version += 1

    def _push(self, policy: Weights) -> None:
        if not self._weights_awake:
            self._resume(WEIGHTS)
            self._weights_awake = True
        with self._explained("sync"):
            with self._update():
                self._sync.run(policy, self._load, self._held)
            self._forget_caches()
        torch.cuda.ipc_collect()  # what the engine has let go of
        self._has_weights = True

    def _load(self, bucket: Bucket) -> None:
        """As one flat copy; what is larger than a bucket goes as it lies in the trainer.

        With each sharing of a storage torch keeps a record on it for as long as it lives, so that sharing all
        parameters as they lie would gather thousands of records; the few large ones do not matter.
        """
        from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

        if len(bucket) == 1 and bucket[0][1].nbytes > self.options.bucket_bytes:
            self._post(bucket, None)
            return
        flat = FlattenedTensorBucket(named_tensors=bucket)
        sent = {"flattened_tensor": flat.get_flattened_tensor(), "metadata": flat.get_metadata()}
        self._post(sent, "flattened_bucket")

    def _held(self) -> Held:
        """Hashes of the weights in the process on this rank's GPU, and in those of the group."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "hashes.json")
            self._post([(str(path), torch.zeros(1, device=self.device))], loader_name(write_hashes))
            told = json.loads(path.read_text())
        copies = max(1, self.group.size // told["kv_heads"]) if told["kv_heads"] else 1
        return Held(self.group.gather(told["hashes"]), FUSED, copies)

    def _post(self, sent: Any, loader: str | None) -> None:
        """Give what each rank sends to the engine's process on its GPU. Collective.

        There `loader` takes it; None: the model's own.

        Its tensors may be freed when this returns.
        """
        from sglang.srt.utils import MultiprocessingSerializer
        from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

        monkey_patch_torch_reductions()  # GPUs are named by UUID: their numbers may differ between processes
        payloads = self.group.gather(MultiprocessingSerializer.serialize(sent))
        outcome = None if self._engine is None else self._send(payloads, loader)
        failure = self.group.gather(outcome)[0]
        if failure:
            raise RuntimeError(failure)

    def _send(self, payloads: list[bytes], loader: str | None) -> str:
        """What went wrong; "" where nothing did."""
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

        # Not Engine.update_weights_from_tensor: it knows no loader but for tensors that it serialises itself.
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=payloads, load_format=loader, flush_cache=False
        )
        done, message = self._wait(self._engine.tokenizer_manager.update_weights_from_tensor(request, None))
        return "" if done else message or "SGLang refused what it was sent"

    @contextmanager
    def _update(self) -> Iterator[None]:
        """Newer versions (0.5.23, not 0.5.18) take tensors only between a begin and an end."""
        in_sessions = hasattr(self._engine, "begin_weight_update")
        if in_sessions:
            _require(self._engine.begin_weight_update())
        yield
        if in_sessions:
            _require(self._engine.end_weight_update())

    def _forget_caches(self) -> None:
        """Keys and values of the old weights. Waits for a step that still runs."""
        if self._engine is None:
            return
        found = self._wait(self._engine.tokenizer_manager.flush_cache(timeout_s=IDLE_SECONDS))
        if not found.success:
            raise RuntimeError(f"the engine is still busy after {IDLE_SECONDS:g} s: {found.message}")

    def _wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._engine.loop.run_until_complete(call)

    # -- sampling

    def generate(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[Rollout]:
        if not self._awake:
            raise RuntimeError("generate was called while the engine sleeps: wake() comes first")
        if not self._has_weights:
            raise RuntimeError("generate was called before start(): the engine has no weights yet")
        shares = self.group.gather(list(prompts))
        everyone = [prompt for share in shares for prompt in share]
        if not everyone:
            return []
        seed = sample_seed(options.seed, self.group.index, 0)
        with self._explained("generate"):
            with self._update():
                self._post([("seed", torch.tensor(seed, device=self.device))], loader_name(seed_generators))
            responses = None if self._engine is None else self._ask(everyone, options, seed)
        first = sum(len(share) for share in shares[: self.group.position])
        own = self.group.gather(responses)[0][first : first + len(prompts)]
        return as_rollouts(prompts, own, self.tokenizer, self.policy_version)

    def _ask(self, prompts: list[Prompt], options: SamplingOptions, seed: int) -> list[list[Response]]:
        ends, banned = self.end_ids, self.options.banned_token_ids
        generation = Generation(self._engine.async_generate, options, ends, banned)
        return self._wait(generation.run(prompts, seed, self.options.timeout, self.on_progress))

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """SGLang's failures as ours: what was being done, what it said, which flag to turn."""
        try:
            yield
        except (RuntimeError, ValueError, AssertionError, ImportError) as error:
            failed = f"{_DOING[doing]} failed (SGLang {self.version})"
            if doing == "start":  # the error says that a process ended; why, the process has printed
                failed += ", most often for memory; the messages of its processes stand above"
            raise EngineError(advice(RuntimeError(f"{failed}: {error or type(error).__name__}"))) from error


def _require(outcome: tuple[bool, str]) -> None:
    done, message = outcome
    if not done:
        raise RuntimeError(message)
