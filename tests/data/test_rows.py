"""Which columns make a prompt, and what each flag does to it."""

import numpy as np
import pytest

from lightrft.data.rows import BadRow, PromptOptions, draft
from lightrft.data.sources import Row
from lightrft.errors import ConfigError

CHAT = [{"role": "user", "content": "1+1="}]


def drafted(values, **options):
    prompt, content = draft(Row("a.jsonl:1", values), PromptOptions(**options))
    return prompt, content


@pytest.mark.parametrize(
    ("values", "references"),
    [
        ({"input": "q", "reference": "42"}, ["42"]),
        ({"input": "q", "reference": ["42", "forty-two"]}, ["42", "forty-two"]),
        ({"question": "q", "answer": "6*7=42\n#### 42"}, ["42"]),
        ({"problem": "q", "ground_truth": 145.0}, ["145"]),
        ({"prompt": "q", "reward_model": {"ground_truth": 0.5, "style": "rule"}}, ["0.5"]),
        ({"prompt": "q", "reward_model": {"ground_truth": 7}, "answer": "8"}, ["7"]),
        ({"prompt": "q", "answer": np.array(["1", "2"])}, ["1", "2"]),
        ({"prompt": "q", "answer": None}, []),
        ({"prompt": "q"}, []),
    ],
)
def test_default_keys_find_prompt_and_references(values, references):
    prompt, content = drafted(values)
    assert content == "q"
    assert prompt.references == references
    assert prompt.source == "a.jsonl:1"


def test_given_keys_name_one_column_and_reach_into_nested_ones():
    values = {"q": {"en": "hi"}, "meta": {"gold": "x"}, "kind": 3, "input": "other", "answer": "other"}
    prompt, content = drafted(values, input_key="q.en", reference_key="meta.gold", label_key="kind")
    assert (content, prompt.references, prompt.label) == ("hi", ["x"], "3")


@pytest.mark.parametrize("option", ["input_key", "reference_key", "label_key"])
def test_a_given_key_that_is_missing_is_a_bad_row_that_names_flag_and_columns(option):
    with pytest.raises(BadRow) as error:
        drafted({"input": "q", "answer": "a"}, **{option: "gone"})
    assert error.value.reason == "missing key"
    assert error.value.detail == f"no 'gone' (--{option}); it has input, answer"


@pytest.mark.parametrize(
    "messages",
    [
        CHAT,
        tuple(CHAT),
        np.array(CHAT, dtype=object),
        [{"from": "human", "value": "1+1="}],
        [{"role": "user", "content": "1+1=", "name": None}],
    ],
)
def test_messages_come_in_several_forms(messages):
    prompt, content = drafted({"prompt": messages})
    assert content == CHAT
    assert prompt.messages == CHAT


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "empty prompt"),
        (" \n", "empty prompt"),
        ([], "unusable prompt"),
        (7, "unusable prompt"),
        ({"role": "user"}, "unusable prompt"),
        (["hello"], "unusable prompt"),
        ([{"role": "user", "content": None}], "unusable prompt"),
        ([{"role": "user", "content": " "}], "empty prompt"),
        ([*CHAT, {"role": "assistant", "content": "2"}], "unusable prompt"),
        (None, "missing key"),
    ],
)
@pytest.mark.parametrize("apply_chat_template", [False, True])
def test_unusable_prompts_are_bad_rows(value, reason, apply_chat_template):
    with pytest.raises(BadRow) as error:
        drafted({"input": value}, apply_chat_template=apply_chat_template)
    assert error.value.reason == reason


def test_a_reference_that_is_no_answer_is_a_bad_row():
    with pytest.raises(BadRow, match="unusable reference"):
        drafted({"input": "q", "reference": {"a": 1}})


def test_the_chat_template_makes_a_text_the_users_message():
    assert drafted({"input": "1+1="}, apply_chat_template=True)[1] == CHAT
    assert drafted({"input": "1+1="})[1] == "1+1="


def test_the_system_prompt_opens_chats_that_bring_none():
    system = {"role": "system", "content": "Add."}
    own = [{"role": "system", "content": "Mine."}, *CHAT]
    assert drafted({"input": CHAT}, system_prompt="Add.")[1] == [system, *CHAT]
    assert drafted({"input": "1+1="}, system_prompt="Add.", apply_chat_template=True)[1] == [system, *CHAT]
    assert drafted({"input": own}, system_prompt="Add.")[1] == own


def test_a_system_prompt_for_plain_text_is_refused_with_the_way_out():
    with pytest.raises(
        ConfigError, match="add --apply_chat_template, or write the text into --input_template"
    ):
        drafted({"input": "1+1="}, system_prompt="Add.")


def test_the_input_template_surrounds_the_users_text_and_leaves_other_braces_alone():
    template = r"Put it in \boxed{answer}: {}"
    expected = r"Put it in \boxed{answer}: x^{2}"
    assert drafted({"input": "x^{2}"}, input_template=template)[1] == expected
    chat = [{"role": "user", "content": "x^{2}"}]
    assert drafted({"input": chat}, input_template=template)[1][-1]["content"] == expected
    assert chat[0]["content"] == "x^{2}"


def test_an_input_template_without_a_place_for_the_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"'Solve:' must contain \{\}"):
        PromptOptions(input_template="Solve:")
