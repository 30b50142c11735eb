"""Teachers in process, and which vocabularies may be compared."""

import re

import pytest
import torch

from lightrft.errors import ConfigError
from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.models.scoring import score_tokens
from lightrft.models.teacher import LocalTeacher, check_vocabulary
from lightrft.tools.make_tiny import make_tokenizer
from tests.models.experiences import make_experience


@pytest.fixture
def policy(tiny_model):
    return Policy(load_causal_lm(ModelOptions(str(tiny_model))), temperature=0.7)


@torch.no_grad()
def test_logprobs_are_the_model_s_own_at_the_temperature(policy):
    experience = make_experience()
    got = LocalTeacher(policy, micro_batch_size=2, device="cpu").logprobs(experience)
    assert got.shape == experience.input_ids.shape
    for row, (prompt, response) in enumerate(((3, 2), (2, 4), (4, 1))):
        ids = experience.input_ids[row, : prompt + response]
        logprobs = (policy.model(ids[None]).logits[0] / 0.7).log_softmax(-1)
        for t in range(prompt, prompt + response):
            assert got[row, t].item() == pytest.approx(logprobs[t - 1, ids[t]].item(), abs=1e-5)
    assert (got[experience.response_mask == 0] == 0).all()
    assert (got[experience.response_mask == 1] < 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_cut_into_micro_batches_changes_nothing(policy, size):
    experience = make_experience()
    whole = LocalTeacher(policy, 4, "cpu").logprobs(experience)
    torch.testing.assert_close(
        LocalTeacher(policy, size, "cpu").logprobs(experience), whole, rtol=0, atol=1e-5
    )
    assert not whole.requires_grad


def test_an_excluded_row_gives_zero(policy):
    experience = make_experience(excluded=(1,))
    got = LocalTeacher(policy, 2, "cpu").logprobs(experience)
    assert (got[1] == 0).all()
    assert (got[[0, 2]] != 0).any()


def test_a_token_beyond_the_teacher_s_embedding_is_named(policy):
    experience = make_experience([([7, 8], [9, 95])])
    with pytest.raises(
        ConfigError, match="the policy sampled token 95, and the teacher's vocabulary ends at 94"
    ):
        LocalTeacher(policy, 2, "cpu").logprobs(experience)


def test_rows_come_back_in_their_own_order():
    """Micro-batches are sorted by length; what is said of a token must land at that token."""
    experience = make_experience()
    seen = []

    def score(part):
        seen.append(part.input_ids.shape)
        return part.input_ids.double()

    got = score_tokens(score, experience, micro_batch_size=2, device="cpu")
    assert got.dtype == torch.float32
    assert torch.equal(
        got[experience.attention_mask == 1],
        experience.input_ids.float().reshape(-1)[experience.attention_mask.reshape(-1) == 1],
    )
    assert seen == [(2, 6), (1, 5)]


def test_the_same_vocabulary_passes(tiny_model):
    own = load_tokenizer(str(tiny_model))
    check_vocabulary(own, make_tokenizer("chars"), "--teacher_pretrain")
    larger = make_tokenizer("chars")
    larger.add_tokens(["<tool>"])
    check_vocabulary(own, larger, "--teacher_pretrain")
    with pytest.raises(
        ConfigError, match=r"1 of the policy's .*'<tool>' is 95 and missing, where 95 is no token"
    ):
        check_vocabulary(larger, own, "--teacher_pretrain")


def test_another_vocabulary_is_refused_by_the_first_differences():
    chars, other = make_tokenizer("chars"), make_tokenizer("bytes")
    other.name_or_path = "org/teacher"
    with pytest.raises(ConfigError) as refused:
        check_vocabulary(chars, other, "--teacher_pretrain")
    message = str(refused.value)
    assert message.startswith("--teacher_pretrain org/teacher: ")
    ids = other.get_vocab()
    for token, i in sorted(chars.get_vocab().items(), key=lambda item: item[1])[5:8]:
        expected = f"{token!r} is {i} and {ids[token]}, where {i} is {other.convert_ids_to_tokens(i)!r}"
        assert re.search(re.escape(expected), message)
    assert message.count(" and ") < 8


def test_a_swapped_special_token_is_noticed():
    """Vocabularies of equal size that differ in two added tokens alone: chat models of one family do."""
    one, two = make_tokenizer("chars"), make_tokenizer("chars")
    one.add_tokens(["<think>", "<tool>"])
    two.add_tokens(["<tool>", "<think>"])
    with pytest.raises(ConfigError, match=r"2 of the policy's .*'<think>' is \d+ and \d+"):
        check_vocabulary(one, two, "--teacher_pretrain")
