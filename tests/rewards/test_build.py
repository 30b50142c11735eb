"""From the words of the flag to scores: weights, sums, parts, and references that cannot be graded."""

import time

import pytest

from lightrft.errors import ConfigError
from lightrft.rewards.build import RewardOptions, build_reward, parse_rewards

THOUGHT = r"<think>6*7</think> \boxed{42}"
MINE = """
    def batch(responses):
        return [{"reward": len(r), "even": len(r) % 2 == 0} if r else None for r in responses]

    def single(response, references):
        if response == "hang":
            while True:
                pass
        return {"reward": float(response in references), "length": len(response)}

    HUNDRED = 100
"""


def test_one_rule_scores_responses_and_shows_its_parts(rollouts):
    reward = build_reward(["gsm8k"])
    result = reward(rollouts([THOUGHT, r"\boxed{42}", "no idea"], ["42"]))
    assert result.rewards == pytest.approx([1.0, 0.9, 0.0])
    assert result.parts["gsm8k/answer"] == [1.0, 1.0, 0.0]
    assert result.parts["gsm8k/format"] == [1.0, 0.0, 0.0]
    assert result.parts["gsm8k"] == result.rewards
    assert result.statuses == ["ok", "ok", "unparsed"]


def test_several_rewards_sum_by_weight_and_keep_their_parts(rollouts):
    reward = build_reward(["gsm8k", "format:0.5", "exact_match:-2"])
    result = reward(rollouts([THOUGHT, "42", r"\boxed{42}"], ["42"]))
    assert result.rewards == pytest.approx([1.5, 0.9 - 2, 0.9])
    assert result.parts["format"] == [1.0, 0.0, 0.0]
    assert result.parts["exact_match"] == [0.0, 1.0, 0.0]
    assert list(result.parts) == ["gsm8k", "gsm8k/answer", "gsm8k/format", "format", "exact_match"]


def test_the_response_is_judged_and_never_the_prompt(rollouts):
    reward = build_reward(["format", "gsm8k", "math"], RewardOptions(num_workers=1))
    result = reward(rollouts(["I see."], ["42"], prompt=f"Answer like this: {THOUGHT}"))
    reward.close()
    assert result.rewards == [0.0]


def test_a_sum_without_one_of_its_terms_is_excluded_with_the_worst_status(rollouts, user_file):
    reward = build_reward(["gsm8k", f"{user_file(MINE)}:batch"])
    result = reward(rollouts(["42", ""], ["42"]))
    assert result.rewards == [pytest.approx(2.9), None]
    assert result.statuses == ["ok", "error"]
    assert result.parts["gsm8k"] == [0.9, 0.0]
    assert result.parts["batch/even"] == [1.0, None]


def test_a_users_rule_runs_in_workers_under_the_time_limit(rollouts, user_file):
    reward = build_reward([f"{user_file(MINE)}:single:0.5"], RewardOptions(timeout=0.5, num_workers=1))
    result = reward(rollouts(["yes", "hang", "no"], ["yes"]))
    reward.close()
    assert result.rewards == [0.5, None, 0.0]
    assert result.statuses == ["ok", "timeout", "ok"]
    assert result.parts == {"single": [1.0, None, 0.0], "single/length": [3.0, None, 2.0]}


def test_parts_are_named_even_without_rollouts(rollouts):
    result = build_reward(["gsm8k"])([])
    assert result.rewards == []
    assert result.parts == {"gsm8k": [], "gsm8k/answer": [], "gsm8k/format": []}


def test_a_row_without_references_is_excluded_by_rules_that_need_them(rollouts):
    result = build_reward(["gsm8k"])(rollouts(["42"]))
    assert (result.rewards, result.statuses) == ([None], ["error"])
    assert build_reward(["format"])(rollouts([THOUGHT])).rewards == [1.0]


def test_references_are_checked_before_training(rollouts):
    prompts = [
        rollouts(["x"], references)[0].prompt
        for references in (["42"], [], ["many", "6*7=42\n#### 42"], ["many"])
    ]
    prompts = [type(p)(i, [1], "", p.references, source=f"a.jsonl:{i + 1}") for i, p in enumerate(prompts)]
    reward = build_reward(["format", "gsm8k", "math"], RewardOptions(num_workers=1))
    problems = reward.check_references(prompts)
    reward.close()
    assert [(p.index, p.source) for p in problems] == [(1, "a.jsonl:2"), (3, "a.jsonl:4")]
    assert "the row has no reference; --reference_key" in problems[0].reason
    assert problems[1].reason == "gsm8k: the reference 'many' states no number"
    assert build_reward(["format"]).check_references(prompts) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gsm8"], "--reward gsm8: unknown; did you mean gsm8k?"),
        (
            ["nonsense"],
            r"unknown; choose from exact_match, format, geo3k, gsm8k, math, multiple_choice, or give path/to",
        ),
        (["model"], r"--reward model: no such reward model is loaded here; choose from"),
        (["model.a:2"], r"--reward model\.a: no such reward model is loaded here"),
        (["remote:0.5"], r"--reward remote: not available yet \(remote reward servers\)"),
        (["math:heavy"], r"--reward math:heavy: the weight 'heavy' is not a number: write math:0\.5"),
        (["math:nan"], "the weight must be finite"),
        (["math", "math:2"], "math is given twice"),
        ([], "--reward: give at least one of exact_match, format, geo3k, gsm8k, math, multiple_choice"),
        (["missing.py:f"], r"there is no file missing\.py"),
    ],
)
def test_what_the_flag_cannot_mean_is_refused_with_what_it_can(words, message):
    with pytest.raises(ConfigError, match=message):
        build_reward(words)


def test_all_faults_are_named_at_once():
    with pytest.raises(ConfigError) as error:
        parse_rewards(["gsm8", "model", "math:x"])
    assert str(error.value).count("--reward") == 3


def test_a_name_in_a_users_file_must_be_a_function(user_file):
    with pytest.raises(ConfigError, match="this is a int, not a function"):
        build_reward([f"{user_file(MINE)}:HUNDRED"])


def test_a_rule_that_raises_in_this_process_costs_its_sample(rollouts, monkeypatch):
    from lightrft.rewards.rules import format as format_rule

    honest = format_rule.score

    def fragile(response, references):
        if response == "bad":
            raise RecursionError
        return honest(response, references)

    monkeypatch.setattr(format_rule, "score", fragile)
    result = build_reward(["format"])(rollouts([THOUGHT, "bad", ""]))
    assert result.rewards == [1.0, None, 0.0]
    assert result.statuses == ["ok", "error", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seconds"), [("gsm8k", 3), ("math", 60)])
def test_a_large_rollout_is_graded_in_time(rollouts, name, seconds):
    """4096 responses of GSM8K's length on two workers; half of them need computer algebra."""
    thinking = "Each of the 6 bags holds 7 apples, so there are 6*7 of them. " * 12
    texts = [thinking + (rf"\boxed{{\frac{{{i}}}{{3}}}}" if i % 2 else f"\n#### {i}") for i in range(4096)]
    batch = rollouts(texts, ["42"])
    reward = build_reward([name], RewardOptions(num_workers=2))
    start = time.monotonic()
    result = reward(batch)
    taken = time.monotonic() - start
    reward.close()
    assert [i for i, value in enumerate(result.rewards) if value > 0.5] == [42]
    assert taken < seconds
