"""`--engine_type hf`: the policy module itself generates, through transformers' `generate`.

No second copy of the weights and nothing to synchronise: the engine for the CPU, for small models and for
architectures that no inference engine knows. Only ZeRO-3, which cuts the policy's weights into shards,
makes it hold a whole copy of its own.

Every draw comes from a stream that belongs to its sample (seed, prompt, sample number), not from a global
generator: the same sample gets the same numbers on any rank, in any batch, before or after a resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from lightrft.data.multimodal import batch_features
from lightrft.distributed.strategy import BUCKET_BYTES, Weights
from lightrft.models.loading import end_token_ids
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.weight_sync import Bucket, WeightSync
from lightrft.types import Prompt, Rollout


def sample_seed(seed: int, prompt_index: int, sample_index: int) -> int:
    """A 63-bit seed that depends on all three and on nothing else."""
    digest = hashlib.blake2b(f"{seed}:{prompt_index}:{sample_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def truncate_distribution(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """`logits [B, V]` with -inf outside the top k and outside the smallest set of mass >= `top_p`.

    The most probable token always stays.
    """
    if top_k > 0 and top_k < logits.shape[-1]:
        kth = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p < 1.0:
        ordered, index = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1) - probs >= top_p  # the mass before a token already suffices
        outside[:, 0] = False
        logits = logits.masked_fill(outside.scatter(-1, index, outside), float("-inf"))
    return logits


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One token per row of `logits [B, V]`, by inverting its cumulative distribution at `uniforms [B]` < 1.

    In float64: a float32 cumulative sum over 150k tokens would move the boundaries between them.
    """
    cumulative = logits.double().softmax(-1).cumsum(-1)
    target = uniforms.double().unsqueeze(-1) * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    last_possible = logits.shape[-1] - 1 - torch.isfinite(logits).flip(-1).int().argmax(-1)
    return torch.minimum(token, last_possible)


class SamplingProcessor(LogitsProcessor):
    """Makes the draw of each row itself and leaves transformers' greedy search no choice but to take it.

    It also keeps the log-prob of what it drew, at the sampling temperature and before top-k and top-p.
    """

    def __init__(self, options: SamplingOptions, seeds: Sequence[int], banned: Tensor | None) -> None:
        self.options = options
        self.banned = banned
        self.logprobs: list[Tensor] = []
        if options.temperature > 0:
            self.uniforms = torch.stack(
                [
                    torch.rand(options.max_new_tokens, generator=torch.Generator().manual_seed(s))
                    for s in seeds
                ]
            )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        o, step = self.options, len(self.logprobs)
        logits = scores.float() / (o.temperature or 1.0)
        if self.banned is not None:
            logits = logits.index_fill(-1, self.banned, float("-inf"))
        allowed = logits
        if o.temperature > 0:
            if step == 0 and o.first_token_temperature is not None:
                allowed = allowed * (o.temperature / o.first_token_temperature)
            allowed = truncate_distribution(allowed, o.top_k, o.top_p)
            token = draw(allowed, self.uniforms[:, step].to(logits.device))
        else:
            token = allowed.argmax(-1)
        chosen = logits.gather(-1, token.unsqueeze(-1))
        self.logprobs.append((chosen.squeeze(-1) - logits.logsumexp(-1)).cpu())
        return torch.full_like(scores, float("-inf")).scatter_(-1, token.unsqueeze(-1), 0.0)


class HFEngine:
    """Generates with the policy module. See `RolloutEngine` for the contract.

    `batch_size` samples run at once; `banned_token_ids` are no part of the distribution. With `own_weights`,
    `model` is a copy beside the policy that a sync fills; without, it is the policy's own. `features` gives
    what the model takes of a prompt besides its tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        batch_size: int,
        banned_token_ids: Sequence[int] = (),
        own_weights: bool = False,
        features: Callable[[Prompt], dict[str, Tensor]] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.policy_version = 0
        self.end_ids = end_token_ids(model, tokenizer)
        self.banned_token_ids = list(banned_token_ids)
        self.on_progress: Callable[[int, int], None] | None = None
        self.features = features
        self._sync = WeightSync(model.dtype, BUCKET_BYTES, 0, "hf") if own_weights else None

    def start(self, policy: Weights) -> None:
        if self._sync is not None:
            self._sync.run(policy, self._load, None)

    def wake(self) -> None:
        """Nothing to take: the KV cache lives only inside `generate`."""

    def sleep(self, weights_change: bool = True) -> None:
        """Nothing to give back."""

    def sync_weights(self, policy: Weights) -> None:
        self.start(policy)
        self.policy_version += 1

    def close(self) -> None:
        """Nothing to end."""

    def _load(self, bucket: Bucket) -> None:
        parameters = dict(self.model.named_parameters())
        for name, tensor in bucket:
            parameters[name].copy_(tensor)

    def generate(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[Rollout]:
        samples = [(prompt, i) for prompt in prompts for i in range(options.n)]
        # Neighbours in length pad least; results go back to the caller's order.
        order = sorted(range(len(samples)), key=lambda k: len(samples[k][0].token_ids))
        rollouts: dict[int, Rollout] = {}
        with self._ready_to_generate():
            for start in range(0, len(order), self.batch_size):
                part = order[start : start + self.batch_size]
                rollouts.update(
                    zip(part, self._generate_batch([samples[k] for k in part], options), strict=True)
                )
                if self.on_progress is not None:
                    self.on_progress(len(rollouts), len(samples))
        return [rollouts[k] for k in range(len(samples))]

    @torch.no_grad()
    def _generate_batch(
        self, samples: list[tuple[Prompt, int]], options: SamplingOptions
    ) -> Iterator[Rollout]:
        device = self.model.device
        lengths = [len(prompt.token_ids) for prompt, _ in samples]
        limits = [options.room_after(prompt) for prompt, _ in samples]
        width = max(lengths)
        input_ids = torch.full((len(samples), width), self.tokenizer.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for row, (prompt, _) in enumerate(samples):  # left-padded: every row continues at the same column
            input_ids[row, width - lengths[row] :] = torch.tensor(prompt.token_ids)
            attention_mask[row, width - lengths[row] :] = 1
        rows = [{} if self.features is None else self.features(prompt) for prompt, _ in samples]
        features = batch_features(rows, lengths, width, left=True)
        seeds = [sample_seed(options.seed, prompt.index, i) for prompt, i in samples]
        banned = torch.tensor(self.banned_token_ids, device=device) if self.banned_token_ids else None
        processor = SamplingProcessor(options, seeds, banned)
        output = self.model.generate(  # type: ignore[operator]
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=self._generation_config(max(limits)),
            logits_processor=LogitsProcessorList([processor]),
            **{name: value.to(device) for name, value in features.items()},
        )
        tokens = output[:, width:].tolist()
        logprobs = torch.stack(processor.logprobs, -1).tolist()
        for row, (prompt, sample_index) in enumerate(samples):
            yield self._rollout(prompt, sample_index, tokens[row][: limits[row]], logprobs[row])

    def _rollout(
        self, prompt: Prompt, sample_index: int, tokens: list[int], logprobs: list[float]
    ) -> Rollout:
        """Cut what `generate` padded after the first end token. Where the pad id is an end id, too."""
        end = next((i + 1 for i, token in enumerate(tokens) if token in self.end_ids), None)
        kept = tokens[:end]
        return Rollout(
            prompt=prompt,
            sample_index=sample_index,
            token_ids=kept,
            text=self.tokenizer.decode(kept, skip_special_tokens=True),
            finish_reason="length" if end is None else "stop",
            logprobs=logprobs[: len(kept)],
            policy_version=self.policy_version,
        )

    def _generation_config(self, max_new_tokens: int) -> GenerationConfig:
        return GenerationConfig(
            do_sample=False,  # the processor has drawn already
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.tokenizer.pad_token_id,
            use_cache=True,
        )

    @contextmanager
    def _ready_to_generate(self) -> Iterator[None]:
        """Evaluation mode, and none of the defaults of the model's own generation config.

        Those (temperature, repetition penalty, ...) fill whatever a call leaves unset, and would change the
        distribution that is sampled from.
        """
        own_config, training = self.model.generation_config, self.model.training
        self.model.generation_config = GenerationConfig()
        self.model.eval()
        try:
            yield
        finally:
            self.model.generation_config = own_config
            self.model.train(training)
