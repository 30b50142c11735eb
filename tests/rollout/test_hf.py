"""The hf engine: order, parity with the trainer, draws that belong to their sample."""

import pytest
import torch

from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.hf import HFEngine, draw, truncate_distribution
from lightrft.types import Prompt, RewardResult


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_causal_lm(ModelOptions(str(tiny_model)))


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(str(tiny_model))


@pytest.fixture
def engine(model, tokenizer):
    return HFEngine(model, tokenizer, batch_size=16)


def prompts(tokenizer, texts=("1+1=", "12+34=", "5+6=", "70+8=")):
    return [Prompt(i, tokenizer(t, add_special_tokens=False).input_ids, t) for i, t in enumerate(texts)]


def test_samples_come_prompt_major_and_in_order(engine, tokenizer):
    rollouts = engine.generate(prompts(tokenizer), SamplingOptions(n=3, max_new_tokens=4))
    assert [(r.prompt.index, r.sample_index) for r in rollouts] == [
        (p, i) for p in range(4) for i in range(3)
    ]


def test_logprobs_equal_the_trainers_at_the_sampling_temperature(engine, model, tokenizer):
    from lightrft.data.batching import collate

    options = SamplingOptions(n=4, temperature=0.7, top_p=0.8, top_k=20, max_new_tokens=8)
    rollouts = engine.generate(prompts(tokenizer), options)
    batch = collate(rollouts, RewardResult([0.0] * len(rollouts)), tokenizer.pad_token_id)
    with torch.no_grad():
        trained = Policy(model, 0.7)(batch.input_ids, batch.attention_mask, batch.response_mask).logprobs
    at = batch.response_mask.bool()
    torch.testing.assert_close(batch.rollout_logprobs[at], trained[at], rtol=0, atol=1e-5)


def test_greedy_equals_transformers(engine, model, tokenizer):
    for prompt, rollout in zip(
        prompts(tokenizer),
        engine.generate(prompts(tokenizer), SamplingOptions(temperature=0.0, max_new_tokens=6)),
        strict=True,
    ):
        ids = torch.tensor([prompt.token_ids])
        own = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        assert rollout.token_ids == own[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_a_sample_draws_the_same_in_any_batch(model, tokenizer, batch_size):
    options = SamplingOptions(n=3, max_new_tokens=6, seed=7)
    whole = HFEngine(model, tokenizer, 16).generate(prompts(tokenizer), options)
    cut = HFEngine(model, tokenizer, batch_size).generate(prompts(tokenizer), options)
    assert [r.token_ids for r in whole] == [r.token_ids for r in cut]
    alone = HFEngine(model, tokenizer, 16).generate(prompts(tokenizer)[2:3], options)
    assert [r.token_ids for r in alone] == [r.token_ids for r in whole[6:9]]


def test_global_generators_are_neither_read_nor_moved(engine, tokenizer):
    options = SamplingOptions(n=2, max_new_tokens=4, seed=1)
    torch.manual_seed(0)
    first, before = engine.generate(prompts(tokenizer), options), torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert [r.token_ids for r in engine.generate(prompts(tokenizer), options)] == [r.token_ids for r in first]


def test_rollouts_of_a_run_draw_differently(engine, tokenizer):
    options = SamplingOptions(n=2, max_new_tokens=8)
    a, b = (engine.generate(prompts(tokenizer), options.for_rollout(k)) for k in (0, 1))
    assert [r.token_ids for r in a] != [r.token_ids for r in b]


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.2, 0.5, 0.3]).log().expand(20000, 3)
    tokens = draw(logits, torch.rand(20000, generator=torch.Generator().manual_seed(0)))
    shares = torch.bincount(tokens, minlength=3) / 20000
    # The standard error of a share of .5 over 20000 draws is .0035.
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.5, 0.3]), rtol=0, atol=0.012)


def test_a_draw_never_lands_on_an_impossible_token():
    logits = torch.tensor([[0.0, float("-inf"), 0.0, float("-inf")]])
    for u in (0.0, 0.4999999, 0.5, 1 - 2**-24):
        assert int(draw(logits, torch.tensor([u]))) in (0, 2)


def test_truncation():
    logits = torch.tensor([[0.1, 0.5, 0.3, 0.1]]).log()

    def kept(**kwargs):
        return truncate_distribution(logits, **kwargs)[0].isfinite().tolist()

    assert kept(top_k=2, top_p=1.0) == [False, True, True, False]
    assert kept(top_k=0, top_p=0.5) == [False, True, False, False]
    assert kept(top_k=0, top_p=0.51) == [False, True, True, False]
    assert kept(top_k=0, top_p=1e-9) == [False, True, False, False]
    assert kept(top_k=0, top_p=1.0) == [True] * 4


def test_a_response_ends_with_its_first_end_token_or_is_cut(model, tokenizer):
    rollouts = HFEngine(model, tokenizer, 64).generate(
        prompts(tokenizer), SamplingOptions(n=16, temperature=2.0, max_new_tokens=40)
    )
    ends = tokenizer.eos_token_id
    stopped = [r for r in rollouts if r.finish_reason == "stop"]
    cut = [r for r in rollouts if r.finish_reason == "length"]
    assert stopped
    assert cut
    assert all(r.token_ids[-1] == ends and ends not in r.token_ids[:-1] for r in stopped)
    assert all(len(r.token_ids) == 40 and ends not in r.token_ids for r in cut)
    assert all(len(r.logprobs) == len(r.token_ids) for r in rollouts)


def test_max_len_bounds_prompt_and_response_together(engine, tokenizer):
    options = SamplingOptions(temperature=0.0, max_new_tokens=30, max_len=12)
    for r in engine.generate(prompts(tokenizer), options):
        total = len(r.prompt.token_ids) + len(r.token_ids)
        assert total == 12 or r.finish_reason == "stop"


def test_banned_tokens_are_never_sampled(model, tokenizer):
    free = HFEngine(model, tokenizer, 64)
    options = SamplingOptions(n=8, max_new_tokens=12)
    seen = {t for r in free.generate(prompts(tokenizer), options) for t in r.token_ids}
    banned = sorted(seen)[::2]
    bound = HFEngine(model, tokenizer, 64, banned_token_ids=banned)
    got = {t for r in bound.generate(prompts(tokenizer), options) for t in r.token_ids}
    assert got.isdisjoint(banned)


def test_the_models_own_generation_defaults_do_not_leak_in(model, tokenizer):
    options = SamplingOptions(n=2, max_new_tokens=6)
    plain = HFEngine(model, tokenizer, 16).generate(prompts(tokenizer), options)
    own = model.generation_config
    try:
        model.generation_config = type(own)(**{**own.to_dict(), "repetition_penalty": 5.0, "top_k": 1})
        biased = HFEngine(model, tokenizer, 16).generate(prompts(tokenizer), options)
        assert model.generation_config.repetition_penalty == 5.0
    finally:
        model.generation_config = own
    assert [r.token_ids for r in plain] == [r.token_ids for r in biased]
    assert model.training
