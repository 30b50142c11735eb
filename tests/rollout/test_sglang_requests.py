"""What SGLang is asked for, and what is made of its answers: no SGLang is needed."""

from __future__ import annotations

import asyncio
import io
import math

import pytest
import torch
from PIL import Image

from lightrft.data.media import Picture
from lightrft.errors import EngineError
from lightrft.rollout import sglang_requests
from lightrft.rollout.base import EngineOptions, SamplingOptions
from lightrft.rollout.sglang_requests import Generation
from lightrft.types import Prompt

PROMPTS = [Prompt(i, [10 + i] * (i + 1), "") for i in range(3)]
GIB = 2**30


def test_the_memory_share_of_the_gpu_becomes_a_share_of_what_is_free():
    assert sglang_requests.static_fraction(0.5, 100 * GIB, 100 * GIB) == pytest.approx(0.45)
    assert sglang_requests.static_fraction(0.5, 80 * GIB, 100 * GIB) == pytest.approx(0.45 / 0.8)


def test_more_memory_than_is_free_is_refused_with_what_would_fit():
    with pytest.raises(
        EngineError, match=r"engine_mem_util 0.5 is 50.0 GiB .* 42.6 are free: use at most 0.42"
    ):
        sglang_requests.static_fraction(0.5, int(42.6 * GIB), 100 * GIB)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, {}),
        ({"max_num_seqs": 7}, {"max_running_requests": 7}),
        ({"max_num_batched_tokens": 512}, {"max_prefill_tokens": 512, "chunked_prefill_size": 512}),
        ({"chunked_prefill": False}, {"chunked_prefill_size": -1}),
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 512},
            {"max_prefill_tokens": 512, "chunked_prefill_size": -1},
        ),
    ],
)
def test_only_limits_that_are_set_are_passed_on(given, limits):
    assert sglang_requests.batch_limits(EngineOptions("model", torch.float32, 64, **given)) == limits


# -- requests and responses


def test_a_request_says_all_that_the_model_could_have_defaults_for():
    sampling = SamplingOptions(temperature=0.7, top_p=0.9)
    assert sglang_requests.sampling_parameters(sampling, 5, 11, [2, 3], []) == {
        "max_new_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "stop_token_ids": [2, 3],
        "skip_special_tokens": False,
        "sampling_seed": 11,
    }


def test_greedy_requests_leave_the_distribution_whole_and_banned_ids_are_pushed_down():
    greedy = SamplingOptions(temperature=0.0, top_p=0.5, top_k=4)
    parameters = sglang_requests.sampling_parameters(greedy, 5, 11, [2], [8, 9])
    assert (parameters["temperature"], parameters["top_p"], parameters["top_k"]) == (0.0, 1.0, -1)
    assert parameters["logit_bias"] == {"8": -100.0, "9": -100.0}


def answer(tokens, reason, logprobs=None):
    about = {"finish_reason": reason and {"type": reason}}
    if logprobs is not None:
        about["output_token_logprobs"] = [(p, t, None) for p, t in zip(logprobs, tokens, strict=True)]
    return {"output_ids": tokens, "meta_info": about}


@pytest.mark.parametrize(
    ("told", "reason"), [("stop", "stop"), ("length", "length"), ("abort", "abort"), (None, "abort")]
)
def test_a_response_keeps_its_tokens_and_says_how_it_ended(told, reason):
    assert sglang_requests.parse_response(answer([5, 4], told), [2]) == ([5, 4], reason, None)
    assert sglang_requests.parse_response(answer([5, 4], told, [-0.5, -1.0]), [2])[2] == [-0.5, -1.0]


def test_an_end_token_at_the_limit_is_an_end():
    told = "length"
    assert sglang_requests.parse_response(answer([5, 2], told), [2])[1] == "stop"
    assert sglang_requests.parse_response(answer([2, 5], told), [2])[1] == "length"


class Server:
    """Answers requests like SGLang, out of order; `seen` holds (input ids, parameters, log-probs wanted)."""

    def __init__(self, reason="stop"):
        self.seen = []
        self.reason = reason
        self.cached = set()

    async def send(self, input_ids, sampling_params, return_logprob):
        self.seen.append((input_ids, sampling_params, return_logprob))
        await asyncio.sleep(0.001 * (len(self.seen) % 3))
        room = sampling_params["max_new_tokens"]
        if room == 0:
            self.cached.add(tuple(input_ids))
            return answer([], "length")
        tokens = [input_ids[0], sampling_params["sampling_seed"] % 97][:room]
        reason = "length" if room == 1 else self.reason
        return answer(tokens, reason, [-1.0] * len(tokens) if return_logprob else None)


def run(server, sampling, timeout=5.0, on_progress=None):
    return asyncio.run(Generation(server.send, sampling, [2]).run(PROMPTS, 0, timeout, on_progress))


def test_samples_are_prompt_major_and_each_prompt_is_prefilled_once():
    server, told = Server(), []
    found = run(
        server, SamplingOptions(n=3, max_len=64), on_progress=lambda done, total: told.append((done, total))
    )
    assert [[sample[0][0] for sample in samples] for samples in found] == [[10] * 3, [11] * 3, [12] * 3]
    assert len({sample[0][1] for samples in found for sample in samples}) == 9  # a seed for every sample
    empty = [ids for ids, parameters, _ in server.seen if parameters["max_new_tokens"] == 0]
    assert sorted(empty) == [prompt.token_ids for prompt in PROMPTS]
    assert told == [(i, 9) for i in range(1, 10)]


def test_the_room_is_each_prompts_own_and_one_sample_needs_no_prefill():
    server = Server()
    run(server, SamplingOptions(n=1, max_new_tokens=6, max_len=8))
    assert [parameters["max_new_tokens"] for _, parameters, _ in server.seen] == [6, 6, 5]


@pytest.mark.parametrize(("choice", "expected"), [("all", 3), ("none", 0), ("sample", 1)])
def test_log_probs_are_asked_for_as_chosen(choice, expected):
    server = Server()
    found = run(server, SamplingOptions(logprobs=choice, max_len=64))
    assert sum(wants for *_, wants in server.seen) == expected
    assert sum(samples[0][2] is not None for samples in found) == expected


def test_a_hot_first_token_is_a_request_of_its_own_without_a_log_prob():
    server = Server()
    sampling = SamplingOptions(temperature=0.5, first_token_temperature=9.0, max_new_tokens=4, max_len=64)
    [first, *_] = run(server, sampling)
    tokens, reason, logprobs = first[0]
    assert tokens[0] == 10
    assert len(tokens) == len(logprobs) == 3
    assert math.isnan(logprobs[0])
    assert not any(math.isnan(p) for p in logprobs[1:])
    assert reason == "stop"
    hot, *cool = [p for ids, p, _ in server.seen if ids[0] == 10]
    assert (hot["temperature"], hot["max_new_tokens"]) == (9.0, 1)
    assert [(p["temperature"], p["max_new_tokens"]) for p in cool] == [(0.5, 3)]


def test_a_hot_first_token_is_the_whole_response_where_there_is_room_for_one():
    server = Server()
    found = run(server, SamplingOptions(first_token_temperature=9.0, max_new_tokens=1, max_len=64))
    assert [samples[0][1] for samples in found] == ["length"] * 3
    assert len(server.seen) == 3


def test_a_generation_that_stands_still_is_named(monkeypatch):
    monkeypatch.setattr(sglang_requests, "TICK_SECONDS", 0.02)

    async def never(**request):
        await asyncio.sleep(30)

    with pytest.raises(EngineError, match=r"no response finished for 0.05 s \(0 of 3 done\)"):
        asyncio.run(Generation(never, SamplingOptions(max_len=64), [2]).run(PROMPTS, 0, 0.05))


def test_a_request_that_fails_ends_the_generation():
    async def refuse(**request):
        raise ValueError("too long")

    with pytest.raises(ValueError, match="too long"):
        asyncio.run(Generation(refuse, SamplingOptions(max_len=64), [2]).run(PROMPTS, 0, 5.0))


class Seer(Server):
    """Answers requests with pictures: says how many prompt tokens it has seen."""

    def __init__(self, prompt_tokens):
        super().__init__()
        self.prompt_tokens, self.images = prompt_tokens, []

    async def send(self, input_ids, sampling_params, return_logprob, image_data=None):
        self.images.append(image_data)
        out = await super().send(input_ids, sampling_params, return_logprob)
        extra = len(input_ids) - 2
        return {**out, "meta_info": {**out["meta_info"], "prompt_tokens": self.prompt_tokens + extra}}


def seeing_prompt():
    buffer = io.BytesIO()
    Image.new("RGB", (28, 56), "red").save(buffer, "PNG")
    multimodal = {"image": (Picture("red", data=buffer.getvalue()),), "prompt_ids": [10, 99]}
    return Prompt(0, [10, 99, 99], "", multimodal=multimodal, source="a.jsonl:1")


def test_vision_prompts_go_with_one_placeholder_and_their_images():
    server = Seer(prompt_tokens=3)
    sampling = SamplingOptions(n=2, max_new_tokens=4, first_token_temperature=9.0, max_len=64)
    asyncio.run(Generation(server.send, sampling, [2]).run([seeing_prompt()], 0, 5.0))
    assert all(ids[:2] == [10, 99] for ids, *_ in server.seen)
    assert {image.size for [image] in server.images} == {(28, 56)}
    assert len(server.seen) == 5  # the prefill, and for each sample its hot first token and the rest


def test_vision_an_engine_that_prepares_images_differently_is_named():
    server = Seer(prompt_tokens=4)
    generation = Generation(server.send, SamplingOptions(max_len=64), [2])
    with pytest.raises(EngineError, match=r"a.jsonl:1: SGLang sees 4 prompt tokens where the trainer sees 3"):
        asyncio.run(generation.run([seeing_prompt()], 0, 5.0))
