"""From flags to a rollout engine that holds the policy's weights, proven by the self-test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from transformers import PreTrainedModel

from lightrft.config.resolve import Config
from lightrft.data.batching import collate
from lightrft.distributed.collectives import rank, reduce_sum
from lightrft.distributed.strategy import TrainableModel
from lightrft.models.loading import end_token_ids, load_causal_lm
from lightrft.models.multimodal import vision_token_ids
from lightrft.models.policy import Policy
from lightrft.observability.sentinels import gap_limits
from lightrft.rollout.base import RolloutEngine
from lightrft.rollout.groups import EngineGroup
from lightrft.rollout.hf import HFEngine
from lightrft.rollout.self_test import run_self_test
from lightrft.trainer import flags
from lightrft.trainer.inputs import Inputs
from lightrft.types import RewardResult, Rollout


def build_engine(
    config: Config, inputs: Inputs, model: PreTrainedModel, dtype: torch.dtype, device: torch.device
) -> RolloutEngine:
    """The engine that `--engine_type` names, without weights yet. Collective.

    `model` is the policy's Hugging Face model, `dtype` what it is trained in.
    """
    if config.engine_type == "hf":
        sharded = config.zero_stage == 3
        if sharded:  # the policy's own module holds shards: a whole copy generates beside it
            model = load_causal_lm(flags.model_options(config, config.pretrain, dtype, trained=False))
            model.to(device)  # type: ignore[arg-type]
        size, features = config.micro_rollout_batch_size, inputs.processor.features
        return HFEngine(model, inputs.tokenizer, size, banned_ids(config, model), sharded, features)
    options = flags.engine_options(config, dtype, inputs.media, banned_ids(config, model))
    patience = timedelta(seconds=2 * options.timeout)
    group = EngineGroup(options.tensor_parallel_size, patience)
    end_ids = end_token_ids(model, inputs.tokenizer)
    if config.engine_type == "vllm":
        from lightrft.rollout.vllm import VLLMEngine

        return VLLMEngine(options, inputs.tokenizer, end_ids, group, device)
    from lightrft.rollout.sglang import SGLangEngine

    return SGLangEngine(options, inputs.tokenizer, end_ids, group, device)


def banned_ids(config: Config, model: PreTrainedModel) -> tuple[int, ...]:
    """What is never sampled and no part of the distribution: the placeholders of pictures."""
    return vision_token_ids(model.config) if config.modality == "vision" else ()


def start_engine(
    config: Config, engine: RolloutEngine, policy: TrainableModel, pad_token_id: int, device: torch.device
) -> None:
    """Give the engine the policy's weights, and test that it samples from them. Collective.

    Raises:
        EngineError: it does not.
    """
    engine.start(policy)
    if config.engine_type == "hf" or not config.engine_self_test:
        return
    low = config.bf16 or config.engine_dtype not in ("auto", "float32")
    result = run_self_test(
        engine,
        policy,
        embedding_name(policy),
        lambda rollouts: mean_gap(policy, rollouts, pad_token_id, device),
        gap_limits("bf16" if low else "fp32"),
        config.max_len,
        f"--engine_type {config.engine_type}",
        _policy_of(policy).banned_token_ids,
    )
    if rank() == 0:
        print(f"engine self-test: {config.engine_type}: {result}", flush=True)


def embedding_name(policy: TrainableModel) -> str:
    """The policy's own name for the weight of its input embedding."""
    module = _policy_of(policy)
    weight = module.model.get_input_embeddings().weight
    return next(name for name, parameter in module.named_parameters() if parameter is weight)


def _policy_of(policy: TrainableModel) -> Policy:
    module = policy.module
    assert isinstance(module, Policy)
    return module


@torch.no_grad()
def mean_gap(
    policy: TrainableModel, rollouts: Sequence[Rollout], pad_token_id: int, device: torch.device
) -> float:
    """Mean |trainer - engine| over the tokens of rollouts that were sampled at temperature 1. Collective."""
    batch = collate(rollouts, RewardResult([0.0] * len(rollouts)), pad_token_id).to(device)
    output = policy(batch.input_ids, batch.attention_mask, batch.response_mask, temperature=1.0)
    assert batch.rollout_logprobs is not None
    known = batch.response_mask.bool() & ~batch.rollout_logprobs.isnan()
    gap = (output.logprobs - batch.rollout_logprobs)[known].abs().double()
    total, count = reduce_sum(torch.stack([gap.sum(), known.sum().double()])).tolist()
    return total / count if count else float("nan")
