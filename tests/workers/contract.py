"""One rollout engine on some ranks, put through its contract: what it did, as numbers, for the test to judge.

The oracle is a plain Hugging Face module with the weights of the policy, read out of its shards.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightrft.data.batching import collate
from lightrft.distributed.collectives import gather_objects, rank, world_size
from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed
from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions, TrainableModel
from lightrft.models.loading import ModelOptions, end_token_ids, load_causal_lm, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.rollout.base import EngineOptions, RolloutEngine, SamplingOptions
from lightrft.rollout.groups import EngineGroup
from lightrft.rollout.hf import HFEngine
from lightrft.rollout.weight_sync import PREFIX
from lightrft.types import Prompt, RewardResult, Rollout

MAX_LEN, NEW = 128, 8
SAMPLING = SamplingOptions(n=3, temperature=0.7, top_p=0.8, top_k=30, max_new_tokens=NEW, max_len=MAX_LEN)
GREEDY = replace(SAMPLING, n=1, temperature=0.0)
TEXTS = ["12+34=" * 9, "7*8=", "12+34=" * 9 + "46", "0", "(5-3)*4="]  # two are longer than a KV cache block


class Bench:
    """A model folder, an engine for it, and policies of any ZeRO stage to fill it with."""

    def __init__(self, settings: dict[str, Any], folder: str, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.dtype = getattr(torch, settings.get("dtype", "float32"))
        self.options = ModelOptions(folder, dtype=self.dtype)
        self.plain = load_causal_lm(self.options).to(device).eval()
        self.tokenizer = load_tokenizer(folder)
        # Rank 0 has one prompt, rank 1 the other four, and then none: ranks never have to have equally many.
        rows = list(enumerate(TEXTS))
        self.rows = rows if world_size() == 1 else [rows[:1], rows[1:]][rank()]
        self.prompts = [
            Prompt(i, self.tokenizer(t, add_special_tokens=False).input_ids, t) for i, t in self.rows
        ]
        self.engine = self._engine(folder)

    def _engine(self, folder: str) -> RolloutEngine:
        end_ids = end_token_ids(self.plain, self.tokenizer)
        if self.settings["engine"] == "hf":
            return HFEngine(load_causal_lm(self.options).to(self.device), self.tokenizer, 4, own_weights=True)
        options = EngineOptions(
            folder,
            self.dtype,
            MAX_LEN,
            tensor_parallel_size=self.settings["tp"],
            memory_share=0.05,
            timeout=600,
            bucket_bytes=40_000,  # several buckets even of this model
            check_every=1,
            kwargs=self.settings.get("kwargs", {}),
        )
        group = EngineGroup(self.settings["tp"])
        if self.settings["engine"] == "vllm":
            from lightrft.rollout.vllm import VLLMEngine

            return VLLMEngine(options, self.tokenizer, end_ids, group, self.device)
        from lightrft.rollout.sglang import SGLangEngine

        return SGLangEngine(options, self.tokenizer, end_ids, group, self.device)

    def policy(self, stage: int, seed: int) -> TrainableModel:
        """A policy under ZeRO `stage` (0: plain PyTorch) whose weights differ from the folder's."""
        strategy = LocalStrategy(self.device, self.dtype)
        if stage:
            bf16 = self.dtype == torch.bfloat16
            strategy = DeepSpeedStrategy(self.device, DeepSpeedOptions(stage, bf16))
        model = load_causal_lm(self.options).to(self.device)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=generator) * 0.02
                p.add_(noise.to(p.dtype).to(p.device))
        trainable = strategy.prepare_trainable(Policy(model, SAMPLING.temperature), OptimizerOptions())
        with torch.no_grad():
            own = dict(self.plain.named_parameters())
            for name, tensor in trainable.full_parameters():
                own[name.removeprefix(PREFIX)].copy_(tensor)
        return trainable

    def gap(self, rollouts: list[Rollout], temperature: float = SAMPLING.temperature) -> float:
        """Largest |engine - oracle| of the sampled tokens' log-probs, over all ranks."""
        largest = 0.0
        if rollouts:
            batch = collate(rollouts, RewardResult([0.0] * len(rollouts)), self.tokenizer.pad_token_id)
            batch = batch.to(self.device)
            with torch.no_grad():
                scored = Policy(self.plain, temperature, self.device)(
                    batch.input_ids, batch.attention_mask, batch.response_mask
                )
            known = batch.response_mask.bool() & ~batch.rollout_logprobs.isnan()
            largest = float((scored.logprobs - batch.rollout_logprobs)[known].abs().max())
        return max(gather_objects(largest))

    def greedy_agrees(self) -> bool:
        """The engine's greedy responses are transformers' own."""
        agrees = True
        for prompt, rollout in zip(self.prompts, self.engine.generate(self.prompts, GREEDY), strict=True):
            ids = torch.tensor([prompt.token_ids], device=self.device)
            pad = self.tokenizer.pad_token_id
            own = self.plain.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=pad)
            agrees &= rollout.token_ids == own[0, ids.shape[1] :].tolist()
        return all(gather_objects(agrees))


def refusal(call: Any) -> str:
    """What a call that must fail says."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def one_stage(bench: Bench, stage: int, first: bool) -> dict[str, Any]:
    """Weights of a policy of this stage, in the engine; asleep while they arrive, except the first time."""
    engine, found = bench.engine, {}
    policy = bench.policy(stage, seed=stage)
    version = engine.policy_version
    if first:
        found["unstarted"] = refusal(lambda: engine.generate(bench.prompts, SAMPLING))
        engine.start(policy)
    else:
        engine.sleep()
        found["asleep"] = refusal(lambda: engine.generate(bench.prompts, SAMPLING))
        engine.sync_weights(policy)
        found["half_awake"] = refusal(lambda: engine.generate(bench.prompts, SAMPLING))
        engine.wake()
    found["versions"] = engine.policy_version - version
    rollouts = engine.generate(bench.prompts, SAMPLING)
    found["order"] = [(r.prompt.index, r.sample_index) for r in rollouts] == [
        (p.index, i) for p in bench.prompts for i in range(SAMPLING.n)
    ]
    found["stamped"] = all(r.policy_version == engine.policy_version for r in rollouts)
    found["gap"] = bench.gap(rollouts)
    found["greedy"] = bench.greedy_agrees()
    return found


def finish_reasons(bench: Bench) -> dict[str, Any]:
    ends = end_token_ids(bench.plain, bench.tokenizer)
    options = replace(SAMPLING, n=64, temperature=1.5, top_p=1.0, top_k=0)
    rollouts = bench.engine.generate(bench.prompts, options)
    stopped = [r for r in rollouts if r.finish_reason == "stop"]
    cut = [r for r in rollouts if r.finish_reason == "length"]
    short = max(gather_objects(max(len(p.token_ids) for p in bench.prompts))) + 2
    limited = bench.engine.generate(bench.prompts, replace(SAMPLING, max_len=short))
    return {
        "stopped": sum(gather_objects(len(stopped))),
        "ended_by_end_token": all(
            r.token_ids[-1] in ends and not ends & set(r.token_ids[:-1]) for r in stopped
        ),
        "cut_at_limit": all(len(r.token_ids) == NEW and not ends & set(r.token_ids) for r in cut),
        "max_len_holds": all(len(r.prompt.token_ids + r.token_ids) <= short for r in limited),
        "as_many_logprobs": all(len(r.logprobs or []) == len(r.token_ids) for r in rollouts),
        "decoded": all(
            r.text == bench.tokenizer.decode(r.token_ids, skip_special_tokens=True) for r in rollouts
        ),
    }


def draws(bench: Bench) -> dict[str, Any]:
    """Draws come from the seed alone, and no global generator notices."""
    options = replace(SAMPLING, temperature=1.0)
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()

    def tokens(seed: int) -> list[list[int]]:
        return [r.token_ids for r in bench.engine.generate(bench.prompts, replace(options, seed=seed))]

    first, other, again = tokens(5), tokens(6), tokens(5)
    untouched = torch.equal(before[0], torch.get_rng_state())
    n = options.n
    differ = [first[k] != first[k + 1] for k in range(0, len(first), n)]
    return {
        "repeats": first == again,
        "differs": first != other or not first,
        "samples_differ": any(differ) or not first,
        "generators_untouched": untouched and before[1] == np.random.get_state()[1].tolist(),
    }


def choices(bench: Bench) -> dict[str, Any]:
    """`logprobs` all, sample, none; the hot first token; no prompts at all on one rank."""
    counted = {}
    for choice in ("all", "sample", "none"):
        rollouts = bench.engine.generate(bench.prompts, replace(SAMPLING, logprobs=choice))
        everywhere = gather_objects([r.logprobs is not None for r in rollouts])
        counted[choice] = [sum(map(sum, everywhere)), sum(map(len, everywhere))]
    hot = bench.engine.generate(bench.prompts, replace(SAMPLING, first_token_temperature=9.0))
    firsts = {r.token_ids[0] for r in hot}
    some = bench.prompts if rank() == 0 else []
    left_out = bench.engine.generate(some, SAMPLING)
    return {
        "logprobs": counted,
        "hot_gap": bench.gap(hot),
        "hot_lengths": all(len(r.token_ids) <= NEW for r in hot),
        "hot_firsts": max(gather_objects(len(firsts))),
        "none_for_none": len(left_out) == len(some) * SAMPLING.n,
    }


def stale_cache(bench: Bench) -> dict[str, float]:
    """New weights with the old keys and values kept, then without."""
    engine = bench.engine
    forget = getattr(engine, "_forget_caches", None)
    if forget is None:
        return {}
    engine.generate(bench.prompts, SAMPLING)
    engine._forget_caches = lambda: None
    engine.sync_weights(bench.policy(0, seed=77))
    stale = bench.gap(engine.generate(bench.prompts, SAMPLING))
    engine._forget_caches = forget
    engine.sync_weights(bench.policy(0, seed=78))
    return {"stale": stale, "fresh": bench.gap(engine.generate(bench.prompts, SAMPLING))}


def wrong_weights(bench: Bench) -> str:
    """A weight changes between sending and comparing: the checksum names it."""
    load = getattr(bench.engine, "_load", None)
    if bench.settings["engine"] == "hf":
        return ""

    def corrupt(bucket: list[tuple[str, torch.Tensor]]) -> None:
        load([(n, t + 0.001 if n.endswith("layers.1.mlp.up_proj.weight") else t) for n, t in bucket])

    bench.engine._load = corrupt
    said = refusal(lambda: _as_runtime_error(lambda: bench.engine.sync_weights(bench.policy(0, seed=79))))
    bench.engine._load = load
    return said


def _as_runtime_error(call: Any) -> None:
    from lightrft.errors import EngineError

    try:
        call()
    except EngineError as error:
        raise RuntimeError(str(error)) from error


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    device = init_distributed(timedelta(seconds=120))
    record: dict[str, Any] = {}
    for name, folder in settings["models"].items():
        bench = Bench(settings, folder, device)
        stages = {s: one_stage(bench, s, k == 0) for k, s in enumerate(settings["stages"])}
        record[name] = {"stages": stages}
        if name == "tied":  # the rest does not depend on how the weights are shaped
            record[name] |= finish_reasons(bench) | draws(bench) | choices(bench) | stale_cache(bench)
            record[name]["corrupt"] = wrong_weights(bench)
    everyone = gather_objects(record)
    if rank() == 0:
        out.write_text(json.dumps(everyone))
    torch.distributed.barrier()
    bench.engine.close()


if __name__ == "__main__":
    main()
