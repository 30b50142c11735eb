"""A rollout engine and a policy on prompts with pictures: what both say of them, as numbers, for the test.

The oracle of log-probs is the policy's own module, one sample at a time, through transformers' whole forward,
which makes its positions itself.
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
from PIL import Image

from lightrft.data.batching import collate
from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.distributed.collectives import gather_objects, rank, world_size
from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy, init_distributed
from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions, TrainableModel
from lightrft.models.loading import ModelOptions, end_token_ids, load_causal_lm, load_processor
from lightrft.models.multimodal import Filler, rope_positions, vision_token_ids
from lightrft.models.policy import Policy
from lightrft.rollout.base import EngineOptions, RolloutEngine, SamplingOptions
from lightrft.rollout.groups import EngineGroup
from lightrft.rollout.hf import HFEngine
from lightrft.types import RewardResult, Rollout

SAMPLING = SamplingOptions(n=3, temperature=0.7, max_new_tokens=8, max_len=160)
LONG = "what is it? " * 3  # longer than a block of the KV cache
ROWS = {
    "one image": {"input": f"<image>{LONG}", "images": ["a.png"]},
    "two images": {"input": f"<image>{LONG}<image>which?", "images": ["a.png", "b.png"]},
    "video": {"input": f"<video>{LONG}", "videos": [["c.png", "d.png", "c.png", "d.png", "c.png", "d.png"]]},
    "text": {"input": f"{LONG}no picture"},
    "image and video": {"input": "<image>x<video>y", "images": ["b.png"], "videos": [["c.png", "d.png"]]},
    "short": {"input": "<image>", "images": ["b.png"]},
}


def write_rows(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    for name, (height, width) in {"a": (56, 84), "b": (84, 28), "c": (56, 56), "d": (56, 56)}.items():
        Image.fromarray(draw.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(
            folder / f"{name}.png"
        )
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.values()))
    return path


class Bench:
    """A model, its processor, the prompts, and an engine."""

    def __init__(self, settings: dict[str, Any], device: torch.device) -> None:
        folder = settings["model"]
        self.device, self.options = device, ModelOptions(folder, vision=True)
        self.processor = VisionProcessor(load_processor(folder))
        self.tokenizer = self.processor.tokenizer
        self.plain = load_causal_lm(self.options).eval()
        self.banned = vision_token_ids(self.plain.config)
        self.fillers = tuple(Filler(*self.processor.filler(kind)) for kind in ("image", "video"))
        options = PromptOptions(apply_chat_template=True, media=MediaOptions(mixed=True), prompt_max_len=120)
        self.everyone = list(load_prompts(settings["rows"], options, self.processor))
        # Rank 0 has the pictures and rank 1 the text alone: they must not wait for each other.
        text = [p for p in self.everyone if not p.multimodal]
        seeing = [p for p in self.everyone if p.multimodal]
        self.prompts = self.everyone if world_size() == 1 else [seeing, text][rank()]
        self.engine = self._engine(settings, folder)

    def _engine(self, settings: dict[str, Any], folder: str) -> RolloutEngine:
        if settings["engine"] == "hf":
            model = load_causal_lm(self.options)
            return HFEngine(model, self.tokenizer, 4, self.banned, True, self.processor.features)
        from lightrft.rollout.vllm import VLLMEngine

        options = EngineOptions(
            folder,
            torch.float32,
            SAMPLING.max_len,
            check_every=1,
            banned_token_ids=self.banned,
            media={"image": 2, "video": 1},
        )
        ends = end_token_ids(self.plain, self.tokenizer)
        return VLLMEngine(options, self.tokenizer, ends, EngineGroup(1), self.device)

    def policy(self, stage: int, seed: int) -> TrainableModel:
        strategy = LocalStrategy(self.device, torch.float32)
        if stage:
            # All parameters are sharded, the small ones of this model, too.
            strategy = DeepSpeedStrategy(self.device, DeepSpeedOptions(stage, persistent_numel=0))
        model = load_causal_lm(self.options)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.02)
        policy = Policy(model, SAMPLING.temperature, self.device, self.banned, self.fillers)
        trainable = strategy.prepare_trainable(policy, OptimizerOptions())
        own = dict(self.plain.named_parameters())
        with torch.no_grad():
            for name, tensor in trainable.full_parameters():
                own[name.removeprefix("model.")].copy_(tensor)
        return trainable

    def oracle(self, rollout: Rollout) -> torch.Tensor:
        """Log-probs of one response by transformers alone: no padding, no positions of ours."""
        ids = torch.tensor([rollout.prompt.token_ids + rollout.token_ids])
        features = dict(self.processor.features(rollout.prompt))
        if features:
            types = features["mm_token_type_ids"]
            features["mm_token_type_ids"] = torch.nn.functional.pad(types, (0, ids.shape[1] - types.shape[1]))
        n = len(rollout.token_ids)
        with torch.no_grad():
            logits = self.plain(input_ids=ids, **features).logits[0, -n - 1 : -1] / SAMPLING.temperature
        logits[:, list(self.banned)] = float("-inf")
        return logits.log_softmax(-1).gather(-1, ids[0, -n:, None])[:, 0]


def gaps(bench: Bench, rollouts: list[Rollout]) -> dict[str, float]:
    """Largest |engine - transformers| for each prompt."""
    out: dict[str, float] = {}
    for rollout in rollouts:
        gap = (bench.oracle(rollout) - torch.tensor(rollout.logprobs)).abs().max().item()
        name = list(ROWS)[rollout.prompt.index]
        out[name] = max(out.get(name, 0.0), gap)
    return out


def trainer_gap(bench: Bench, policy: TrainableModel, rollouts: list[Rollout]) -> float:
    """Largest |policy - engine| with all samples padded into one batch. Collective: ZeRO-3 gathers."""
    result = RewardResult([0.0] * len(rollouts))
    batch = collate(rollouts, result, bench.tokenizer.pad_token_id, bench.processor.features)
    batch.position_ids = policy.module.positions(batch)
    with torch.no_grad():
        scored = policy.module(
            batch.input_ids,
            batch.attention_mask,
            batch.response_mask,
            position_ids=batch.position_ids,
            multimodal=batch.multimodal,
        )
    known = batch.response_mask.bool()
    return (scored.logprobs - batch.rollout_logprobs)[known].abs().max().item()


def positions_agree(bench: Bench) -> bool:
    """Positions of a padded batch are the model's own for each sample alone."""
    rows = [bench.processor.features(p) for p in bench.everyone]
    width = max(len(p.token_ids) for p in bench.everyone)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, p in enumerate(bench.everyone):
        ids[i, : len(p.token_ids)] = torch.tensor(p.token_ids)
        mask[i, : len(p.token_ids)] = 1
    ours = rope_positions(bench.plain, ids, mask, rows)
    agree = True
    for i, (p, row) in enumerate(zip(bench.everyone, rows, strict=True)):
        n = len(p.token_ids)
        own = torch.arange(n).expand(3, 1, n)
        if row:
            known = {k: v for k, v in row.items() if not k.startswith("pixel")}
            own = bench.plain.model.get_rope_index(ids[i : i + 1, :n], **known)[0]
        agree &= torch.equal(ours[i, :n].T, own[:, 0]) and not ours[i, n:].any()
    return bool(agree)


def training_step(bench: Bench, policy: TrainableModel, rollouts: list[Rollout]) -> dict[str, Any]:
    """One optimizer step, a sample at a time: ranks with and without pictures, in step."""
    result = RewardResult([1.0] * len(rollouts))
    batch = collate(rollouts, result, bench.tokenizer.pad_token_id, bench.processor.features)
    count = min(gather_objects(len(rollouts)))
    for k in range(count):
        part = batch.select([k])
        scored = policy(part.input_ids, part.attention_mask, part.response_mask, multimodal=part.multimodal)
        policy.backward(-scored.logprobs.sum() / 10, last=k == count - 1, finite=True)
    done = policy.step(1e-3)
    return {"skipped": done.skipped, "norm": done.grad_norm}


def main() -> None:
    out, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    device = init_distributed(timedelta(seconds=120))
    bench = Bench(settings, device)
    record: dict[str, Any] = {"positions": positions_agree(bench), "stages": {}}
    for k, stage in enumerate(settings["stages"]):
        policy = bench.policy(stage, seed=stage + 1)
        if k == 0:
            bench.engine.start(policy)
        else:
            bench.engine.sleep()
            bench.engine.sync_weights(policy)
            bench.engine.wake()
        rollouts = bench.engine.generate(bench.prompts, SAMPLING)
        found: dict[str, Any] = {"gaps": gaps(bench, rollouts)}
        found["trainer"] = trainer_gap(bench, policy, rollouts)
        hot = replace(SAMPLING, temperature=5.0, n=16)
        sampled = {t for r in bench.engine.generate(bench.prompts, hot) for t in r.token_ids}
        found["banned"] = sorted(sampled & set(bench.banned))
        found["step"] = training_step(bench, policy, rollouts)
        record["stages"][stage] = found
    everyone = gather_objects(record)
    if rank() == 0:
        out.write_text(json.dumps(everyone))
    torch.distributed.barrier()
    bench.engine.close()


if __name__ == "__main__":
    main()
