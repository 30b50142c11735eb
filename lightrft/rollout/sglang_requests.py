"""What SGLang is told and what it answers: its limits, the requests of one generation, their responses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lightrft.data.multimodal import engine_media
from lightrft.errors import EngineError
from lightrft.rollout.base import (
    EngineOptions,
    Response,
    SamplingOptions,
    check_prompt_ids,
    how_it_ended,
)
from lightrft.rollout.groups import wants_logprobs
from lightrft.rollout.hf import sample_seed
from lightrft.rollout.watchdog import Watchdog
from lightrft.types import FinishReason, Prompt

STATIC_SHARE = 0.9  # of the engine's memory for weights and KV cache; the rest is for activations and graphs
BANNED_BIAS = -100.0  # added to logits
NO_CHUNKS = -1
TICK_SECONDS = 1.0  # between looks at the clock while generating
FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def static_fraction(memory_share: float, free: int, total: int) -> float:
    """`mem_fraction_static` for an engine that is to take `memory_share` of a GPU of `total` bytes.

    SGLang counts it from the bytes that are `free` when it starts, for weights and KV cache alone.

    Raises:
        EngineError: so much is not free.
    """
    wanted = memory_share * total
    if wanted > free:
        fits = math.floor(100 * free / total) / 100
        raise EngineError(
            f"engine_mem_util {memory_share:g} is {wanted / 2**30:.1f} GiB of the GPU's {total / 2**30:.1f}, "
            f"but {free / 2**30:.1f} are free: use at most {fits:g}, or free the GPU (see nvidia-smi)"
        )
    return STATIC_SHARE * wanted / free


def batch_limits(options: EngineOptions) -> dict[str, Any]:
    """SGLang's arguments for the limits that are set; its own choice stands for the others.

    The token limit of a step is that of a prefill chunk, or of a whole prefill where prompts are not cut.
    """
    limits = {
        "max_running_requests": options.max_num_seqs,
        "max_prefill_tokens": options.max_num_batched_tokens,
        "chunked_prefill_size": NO_CHUNKS
        if options.chunked_prefill is False
        else options.max_num_batched_tokens,
    }
    return {name: value for name, value in limits.items() if value is not None}


def sampling_parameters(
    options: SamplingOptions, room: int, seed: int, end_ids: Sequence[int], banned: Sequence[int]
) -> dict[str, Any]:
    """One sample of at most `room` tokens. `seed` counts where the engine is deterministic, else not."""
    greedy = options.temperature == 0
    parameters: dict[str, Any] = {
        "max_new_tokens": room,
        "temperature": options.temperature,
        "top_p": 1.0 if greedy else options.top_p,
        "top_k": -1 if greedy or options.top_k == 0 else options.top_k,  # -1: all
        "stop_token_ids": list(end_ids),
        "skip_special_tokens": False,
        "sampling_seed": seed,
    }
    if banned:
        parameters["logit_bias"] = {str(token): BANNED_BIAS for token in banned}
    return parameters


def parse_response(output: Mapping[str, Any], end_ids: Sequence[int]) -> Response:
    """The end token is among the token ids where one was sampled. Log-probs are None where not asked for."""
    tokens = list(output["output_ids"])
    about = output["meta_info"]
    logprobs = about.get("output_token_logprobs")
    reason = FINISH_REASONS.get((about["finish_reason"] or {}).get("type", ""), "abort")
    reason = how_it_ended(tokens, reason, end_ids)
    return tokens, reason, None if logprobs is None else [entry[0] for entry in logprobs]


class Generation:
    """The requests of one `generate`, all under way at once: the engine queues and batches them.

    `send` takes `input_ids`, `sampling_params` and `return_logprob`, as `sglang.Engine.async_generate` does.
    """

    def __init__(
        self,
        send: Callable[..., Awaitable[Mapping[str, Any]]],
        options: SamplingOptions,
        end_ids: Sequence[int],
        banned: Sequence[int] = (),
    ) -> None:
        self.send = send
        self.options = options
        self.end_ids = end_ids
        self.banned = banned

    async def run(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        timeout: float,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Response]]:
        """For each prompt its n samples, in order. `seed` chooses whose log-probs are wanted.

        Raises:
            EngineError: for `timeout` seconds no response has finished.
        """
        n = self.options.n
        wanted = wants_logprobs(self.options.logprobs, len(prompts), seed)
        with Watchdog(timeout, len(prompts) * n) as watchdog:

            def finished() -> None:
                watchdog.advance(1)
                if on_progress is not None:
                    on_progress(watchdog.finished, watchdog.total)

            tasks: list[asyncio.Task[Response]] = []
            for prompt, wants in zip(prompts, wanted, strict=True):
                cached = self._prefill(prompt)
                tasks += [
                    asyncio.create_task(self._sample(prompt, i, wants, cached, finished)) for i in range(n)
                ]
            await _all_done(tasks, watchdog)
        return [[task.result() for task in tasks[k : k + n]] for k in range(0, len(tasks), n)]

    def _prefill(self, prompt: Prompt) -> asyncio.Task[Response] | None:
        """Fills the prefix cache, so that the prompt is computed once and not n times."""
        if self.options.n == 1:
            return None
        return asyncio.create_task(self._request(prompt, [], self._parameters(prompt, 0, 0), wants=False))

    async def _sample(
        self,
        prompt: Prompt,
        index: int,
        wants: bool,
        cached: asyncio.Task[Response] | None,
        finished: Callable[[], None],
    ) -> Response:
        if cached is not None:
            await cached
        response = await self._respond(prompt, index, wants)
        finished()
        return response

    async def _respond(self, prompt: Prompt, index: int, wants: bool) -> Response:
        room = self.options.room_after(prompt)
        parameters = self._parameters(prompt, index, room)
        if self.options.first_token_temperature is None or self.options.temperature == 0:
            return await self._request(prompt, [], parameters, wants)
        # SGLang would give the log-prob of a hot token at its own temperature, not at the one that the
        # trainer scores at: it is left unknown.
        hot = parameters | {"temperature": self.options.first_token_temperature, "max_new_tokens": 1}
        tokens, reason, _ = await self._request(prompt, [], hot, wants=False)
        logprobs = [math.nan] * len(tokens) if wants else None
        if reason != "length" or room <= 1:
            return tokens, reason, logprobs
        cooler = parameters | {"max_new_tokens": room - 1}
        rest, reason, more = await self._request(prompt, tokens, cooler, wants)
        return tokens + rest, reason, None if logprobs is None else logprobs + (more or [])

    async def _request(
        self, prompt: Prompt, tokens: list[int], parameters: dict[str, Any], wants: bool
    ) -> Response:
        """`prompt` and `tokens` after it. Pictures go beside ids that have one placeholder for each."""
        if not prompt.multimodal:
            ids = prompt.token_ids + tokens
            output = await self.send(input_ids=ids, sampling_params=parameters, return_logprob=wants)
            return parse_response(output, self.end_ids)
        output = await self.send(
            input_ids=prompt.multimodal["prompt_ids"] + tokens,
            image_data=engine_media(prompt.multimodal)["image"],
            sampling_params=parameters,
            return_logprob=wants,
        )
        check_prompt_ids(prompt, output["meta_info"]["prompt_tokens"] - len(tokens), "SGLang")
        return parse_response(output, self.end_ids)

    def _parameters(self, prompt: Prompt, index: int, room: int) -> dict[str, Any]:
        seed = sample_seed(self.options.seed, prompt.index, index)
        return sampling_parameters(self.options, room, seed, self.end_ids, self.banned)


async def _all_done(tasks: Sequence[asyncio.Task[Response]], watchdog: Watchdog) -> None:
    """Return when all tasks have; at the first failure, or where nothing moves, end them all and raise it."""
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=TICK_SECONDS, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            watchdog.check()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
