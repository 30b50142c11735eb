"""A user's batch function: what it is given, what it may return, and what its mistakes cost."""

import numpy as np
import pytest
import torch

from lightrft.errors import ConfigError, RewardError
from lightrft.rewards.function import FunctionReward, is_user_rule


def reward(function):
    return FunctionReward("mine", function, "mine.py:f")


def test_it_is_given_lists_by_name_and_only_those_it_asks_for(rollouts):
    seen = {}

    def everything(prompts, responses, references, rollouts, scale=2.0):
        seen.update(prompts=prompts, responses=responses, references=references, rollouts=rollouts)
        return [scale * len(r) for r in responses]

    batch = rollouts(["a", "bb"], ["2"])
    assert reward(everything)(batch).rewards == [2.0, 4.0]
    assert seen == {
        "prompts": ["1+1=", "1+1="],
        "responses": ["a", "bb"],
        "references": [["2"], ["2"]],
        "rollouts": batch,
    }
    assert reward(lambda responses: [1] * len(responses))(batch).rewards == [1.0, 1.0]
    assert reward(lambda **given: [len(given)] * 2)(batch).rewards == [4.0, 4.0]


@pytest.mark.parametrize(
    "values",
    [[1, 0.5], (1, 0.5), [True, 0.5], np.array([1, 0.5]), torch.tensor([1, 0.5]), [np.float32(1), 0.5]],
)
def test_numbers_come_in_several_forms(values, rollouts):
    result = reward(lambda responses: values)(rollouts(["a", "b"]))
    assert result.rewards == [1.0, 0.5]
    assert result.statuses == ["ok", "ok"]


def test_what_has_no_score_is_excluded_and_never_zero(rollouts):
    values = [1.0, None, float("nan"), float("inf"), 0.0]
    result = reward(lambda responses: values)(rollouts("abcde"))
    assert result.rewards == [1.0, None, None, None, 0.0]
    assert result.statuses == ["ok", "error", "error", "error", "ok"]


def test_dicts_carry_named_parts_and_missing_ones_are_none(rollouts):
    values = [{"reward": 1, "style": 0.5}, 0.0, {"reward": None, "length": 3}]
    result = reward(lambda responses: values)(rollouts("abc"))
    assert result.rewards == [1.0, 0.0, None]
    assert result.parts == {"style": [0.5, None, None], "length": [None, None, 3.0]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "1 rewards for 2 responses"),
        ([1.0, 2.0, 3.0], "3 rewards for 2 responses"),
        (1.0, "returned a float: it must return a list"),
        (None, "returned a NoneType"),
        ({"reward": [1, 2]}, "returned a dict"),
        ([1.0, "good"], "must be a number or None, not str 'good'"),
        ([1.0, {"style": 1}], r"needs the key 'reward'; it has \['style'\]"),
        ([1.0, {"reward": 1, "style": "x"}], "part 'style' must be a number"),
    ],
)
def test_a_result_that_cannot_be_understood_stops_the_run(values, message, rollouts):
    with pytest.raises(RewardError, match=rf"--reward mine\.py:f.*{message}"):
        reward(lambda responses: values)(rollouts("ab"))


def test_an_exception_costs_only_the_samples_that_raise(rollouts, caplog):
    calls = []

    def picky(responses):
        calls.append(responses)
        return [1 / len(r) for r in responses]

    result = reward(picky)(rollouts(["ab", "", "abcd"]))
    assert result.rewards == [0.5, None, 0.25]
    assert result.statuses == ["ok", "error", "ok"]
    assert calls == [["ab", "", "abcd"], ["ab"], [""], ["abcd"]]
    assert "ZeroDivisionError" in caplog.text


def test_a_function_that_never_works_stops_the_run_with_its_error(rollouts):
    def broken(responses):
        raise KeyError("model")

    with pytest.raises(RewardError, match="fails on every response: KeyError: 'model'"):
        reward(broken)(rollouts("ab"))


def test_a_function_that_has_worked_may_fail_on_a_whole_batch(rollouts):
    mine = reward(lambda responses: [1 / len(r) for r in responses])
    assert mine(rollouts(["a"])).rewards == [1.0]
    assert mine(rollouts(["", ""])).rewards == [None, None]


def test_no_rollouts_no_call(rollouts):
    def never(responses):
        raise AssertionError("called without responses")

    result = reward(never)([])
    assert (result.rewards, result.parts, result.statuses) == ([], {}, [])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda queries: [], "this one asks for queries"),
        (lambda: [], "this one takes none"),
        (7, "this is a int, not a function"),
    ],
)
def test_a_function_with_other_parameters_is_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        reward(function)


def test_a_function_of_one_response_is_a_rule():
    assert is_user_rule(lambda response, references: 1.0, "f")
    assert not is_user_rule(lambda responses, references: [1.0], "f")
    assert not is_user_rule(7, "f")
    with pytest.raises(
        ConfigError, match=r"takes \(response, references\); this one takes \(response, answer\)"
    ):
        is_user_rule(lambda response, answer: 1.0, "f")
