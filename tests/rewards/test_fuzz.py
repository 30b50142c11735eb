"""Whatever a model writes: no grader crashes, each stays within its limit, and n responses have n scores."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightrft import registry
from lightrft.rewards.build import RewardOptions, build_reward
from lightrft.rewards.worker import RULES
from lightrft.types import Prompt, Rollout

# What mathematics and its mark-up are made of, put together without sense.
LATEX = [r"\boxed{", r"\frac{1}{2}", r"\sqrt", r"\text{", r"\pi", "\\", "{", "}", "$", "^", "_", "&", "!"]
PLAIN = ["42", "-3", "1,234", "x", "i", "(", ")", "=", "%", " ", "\n"]
MARKS = ["####", "<think>", "</think>", "The answer is "]
PIECES = st.sampled_from([*LATEX, *PLAIN, *MARKS])
RESPONSES = st.one_of(
    st.text(max_size=60),
    st.lists(PIECES, max_size=14).map("".join),
    st.lists(PIECES, max_size=8).map(lambda pieces: r"\boxed{" + "".join(pieces) + "}"),
    st.text(st.characters(codec=None), max_size=20),  # with lone surrogates
)


@pytest.fixture(scope="module", params=registry.names(RULES))
def reward(request):
    made = build_reward([request.param], RewardOptions(timeout=5.0, num_workers=2))
    yield made
    made.close()


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(responses=st.lists(RESPONSES, max_size=8))
def test_any_text_gets_a_score_in_its_place(reward, responses):
    prompt = Prompt(0, [1], "", ["42", r"\frac{1}{2}", "B"])
    marked = [r"\boxed{42}", *responses, r"\boxed{42}"]
    result = reward([Rollout(prompt, i, [2], text, "stop") for i, text in enumerate(marked)])
    assert len(result.rewards) == len(marked)
    assert result.rewards[0] == result.rewards[-1] is not None
    for value, status in zip(result.rewards, result.statuses, strict=True):
        assert (value is None) == (status in ("timeout", "error"))
        assert value is None or -1e-9 <= value <= 1 + 1e-9
    assert "error" not in result.statuses
