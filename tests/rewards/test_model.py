"""Reward models as rewards: what they read of a rollout, and what becomes of texts without a score."""

import logging
import math

import pytest

from lightrft.errors import ConfigError, DataError, RewardError
from lightrft.rewards.build import build_reward
from lightrft.rewards.model import ModelReward, ReadLimits
from lightrft.rewards.reading import Reader
from lightrft.tools.make_tiny import make_tokenizer
from lightrft.types import Prompt, Rollout

CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}]
OTHER_TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


def tokenizer(vocab="chars", template="own"):
    made = make_tokenizer(vocab)
    if template != "own":
        made.chat_template = template
    return made


def rollout(text="2", messages=CHAT, finish="stop", prompt_ids=(2, 40, 3), ids=(7, 1)):
    prompt = Prompt(0, list(prompt_ids), "1+1=", messages=messages, source="a.jsonl:1")
    return Rollout(prompt, 0, list(ids), text, finish)


def read(policy, own, *rollouts):
    return Reader(policy, own)(rollouts)


class Scores:
    """A scorer that gives these values, and remembers what it was asked."""

    def __init__(self, *values):
        self.values = list(values)
        self.asked = []
        self.closed = False

    def __call__(self, texts):
        self.asked.append([list(text) for text in texts])
        return [self.values.pop(0) for _ in texts]

    def close(self):
        self.closed = True


def reward(*values, name="model", limits=None, own=None):
    policy = tokenizer()
    made = ModelReward(name, "org/rm", Reader(policy, own or policy), limits or ReadLimits(1000))
    scorer = Scores(*values)
    made.start(scorer)
    return made, scorer


# -- what is read


def test_the_same_tokens_and_template_reuse_the_ids():
    """Prompt ids that the template would not give: they can only come from the rollout."""
    assert read(tokenizer(), tokenizer(), rollout()) == [[2, 40, 3, 7, 1]]


def test_a_reward_model_without_a_template_reads_the_policys_chat():
    assert read(tokenizer(), tokenizer(template=None), rollout()) == [[2, 40, 3, 7, 1]]


@pytest.mark.parametrize("vocab", ["chars", "bytes"])
def test_another_template_or_vocabulary_encodes_the_chat_anew(vocab):
    own = tokenizer(vocab, OTHER_TEMPLATE)
    (ids,) = read(tokenizer(), own, rollout())
    assert own.decode(ids) == "[system] Add.\n[user] 1+1=\n[assistant] 2\n"


def test_plain_text_of_another_vocabulary_is_encoded_as_it_stands_and_ends_where_the_response_did():
    own = tokenizer("bytes")
    ended, cut = read(
        tokenizer(), own, rollout(messages=None), rollout(messages=None, finish="length", text="22")
    )
    assert own.decode(ended) == "1+1=2<eos>"
    assert own.decode(cut) == "1+1=22"


def test_plain_text_of_the_same_vocabulary_reuses_the_ids_whatever_the_templates():
    assert read(tokenizer(), tokenizer(template=OTHER_TEMPLATE), rollout(messages=None)) == [[2, 40, 3, 7, 1]]


def test_a_reward_model_may_know_more_tokens_but_not_fewer_or_others():
    more, fewer = tokenizer(), tokenizer()
    more.add_tokens(["<more>"])
    fewer.add_tokens(["<policy_only>"])
    assert read(tokenizer(), more, rollout()) == [[2, 40, 3, 7, 1]]
    assert read(fewer, tokenizer(), rollout()) != [[2, 40, 3, 7, 1]]


def test_a_bos_that_only_the_reward_model_writes_is_written():
    from tokenizers.processors import TemplateProcessing

    own = tokenizer()
    own.backend_tokenizer.post_processor = TemplateProcessing(single="<u> $A", special_tokens=[("<u>", 2)])
    (ids,) = read(tokenizer(), own, rollout(messages=None))
    assert own.decode(ids) == "<u>1+1=2<eos>"


def test_a_template_that_refuses_a_chat_costs_that_row_alone():
    picky = "{% if messages[-1]['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}" + OTHER_TEMPLATE
    good, bad = read(tokenizer(), tokenizer(template=picky), rollout(), rollout(text="bad"))
    assert isinstance(good, list)
    assert isinstance(bad, DataError)
    assert "no" in str(bad)


def test_chats_that_cannot_be_written_are_an_error_before_training():
    made, _ = reward(own=tokenizer("bytes", None))
    with pytest.raises(ConfigError, match=r"no chat template, so it cannot read the chat of a\.jsonl:1"):
        made.check_references([rollout().prompt])
    assert made.check_references([rollout(messages=None).prompt]) == []
    assert reward()[0].check_references([rollout().prompt]) == []


# -- what becomes of it


def test_scores_go_to_their_rollouts():
    made, scorer = reward(0.5, -3.0)
    result = made([rollout(ids=(7, 1)), rollout(ids=(8, 1))])
    assert result.rewards == [0.5, -3.0]
    assert result.statuses == ["ok", "ok"]
    assert scorer.asked == [[[2, 40, 3, 7, 1], [2, 40, 3, 8, 1]]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_costs_its_row_and_is_never_0(bad, caplog):
    made, _ = reward(1.0, bad, 2.0)
    with caplog.at_level(logging.WARNING):
        result = made([rollout()] * 3)
    assert result.rewards == [1.0, None, 2.0]
    assert result.statuses == ["ok", "error", "ok"]
    assert f"--reward model: 1 of 3 excluded: the score is {bad}" in caplog.text


@pytest.mark.parametrize(
    ("limits", "row", "says"),
    [
        (ReadLimits(1000, 5), {"ids": (7, 8, 1)}, "6 tokens, and the model was made for 5"),
        (ReadLimits(41), {"ids": (41, 1)}, "token 41, and its vocabulary ends at 40"),
        (ReadLimits(1000), {"prompt_ids": (), "ids": ()}, "there is no token to score"),
    ],
)
def test_what_the_model_cannot_read_never_reaches_it(limits, row, says, caplog):
    made, scorer = reward(1.0, 2.0, limits=limits)
    with caplog.at_level(logging.WARNING):
        result = made([rollout(), rollout(**row), rollout()])
    assert result.rewards == [1.0, None, 2.0]
    assert scorer.asked == [[[2, 40, 3, 7, 1]] * 2]
    assert says in caplog.text


def test_no_score_at_all_stops_the_run_at_its_start_and_not_later():
    made, _ = reward(math.nan, 1.0, math.nan)
    with pytest.raises(
        RewardError, match=r"model \(org/rm\) gives none of 1 responses a score: the score is nan"
    ):
        made([rollout()])
    assert made([rollout()]).rewards == [1.0]
    assert made([rollout()]).rewards == [None]


def test_a_rank_without_rollouts_still_calls_the_scorer():
    """Under ZeRO-3 the others wait for it."""
    made, scorer = reward()
    assert made([]).rewards == []
    assert scorer.asked == [[]]


def test_a_reward_that_was_not_started_says_so():
    with pytest.raises(RuntimeError, match="before start"):
        ModelReward("model", "org/rm", Reader(tokenizer(), tokenizer()), ReadLimits(10))([rollout()])


def test_several_models_and_a_rule_sum_by_weight():
    first, one = reward(1.0, math.nan, name="model.a")
    second, two = reward(10.0, 20.0, name="model.b")
    both = build_reward(["model.a:0.7", "format", "model.b:0.3"], models=[first, second])
    result = both([rollout(), rollout()])
    assert result.rewards == [pytest.approx(0.7 + 3.0), None]
    assert result.parts["model.a"] == [1.0, None]
    assert result.parts["model.b"] == [10.0, 20.0]
    both.close()
    assert one.closed and two.closed
