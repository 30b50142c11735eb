"""Draws of the hf engine against a distribution that is known by hand."""

import math

import pytest
import torch

from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.hf import HFEngine, SamplingProcessor, sample_seed, truncate_distribution
from lightrft.types import Prompt

# Logits [0, ln 3]: token 0 has probability 1/4, at temperature 2 it has 1 / (1 + sqrt 3) = .366. A draw at .3
# lies between the two.
SCORES = torch.tensor([[0.0, math.log(3)]])


def drawn(steps=1, **options):
    processor = SamplingProcessor(SamplingOptions(max_new_tokens=steps, **options), [0], None)
    processor.uniforms = torch.full((1, steps), 0.3)
    tokens = [int(processor(torch.zeros(1, 1), SCORES).argmax()) for _ in range(steps)]
    return tokens, [float(lp) for lp in processor.logprobs]


def test_the_temperature_divides_the_logits():
    assert drawn(temperature=1.0)[0] == [1]
    assert drawn(temperature=2.0)[0] == [0]


def test_the_first_tokens_temperature_holds_for_the_first_token_only():
    assert drawn(2, temperature=1.0, first_token_temperature=2.0)[0] == [0, 1]


def test_logprobs_are_at_the_sampling_temperature_whatever_the_first_tokens_is():
    # ln(1 / 4) = -1.3863 of token 0, although it was drawn at temperature 2; ln(3 / 4) = -.2877 of token 1
    _, logprobs = drawn(2, temperature=1.0, first_token_temperature=2.0)
    assert logprobs == pytest.approx([-1.3863, -0.2877], abs=1e-4)


def test_logprobs_are_of_the_whole_distribution():
    # Top-k 1 leaves only token 1, whose log-prob is still ln(3 / 4).
    tokens, logprobs = drawn(top_k=1)
    assert tokens == [1]
    assert logprobs == pytest.approx([-0.2877], abs=1e-4)


def test_seeds_depend_on_run_prompt_and_sample():
    seeds = {sample_seed(*which) for which in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1))}
    assert len(seeds) == 5
    assert sample_seed(3, 4, 5) == sample_seed(3, 4, 5)


def test_samples_of_one_prompt_differ(tiny_model):
    options = ModelOptions(str(tiny_model))
    engine = HFEngine(load_causal_lm(options), load_tokenizer(str(tiny_model)), batch_size=8)
    rollouts = engine.generate([Prompt(0, [5, 6, 7], "")], SamplingOptions(n=8, max_new_tokens=8))
    assert len({tuple(r.token_ids) for r in rollouts}) == 8


def test_top_p_keeps_the_token_that_crosses_it():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert truncate_distribution(logits, 0, 0.6).isfinite().tolist() == [[True, True, False]]
