"""Texts for PTX: rows, special tokens, the order of draws, the loss mask."""

import random

import pytest
import torch
from datasets import Dataset

from lightrft.data.texts import TextOptions, TextSampler, collate_texts, load_texts
from lightrft.errors import ConfigError, DataError
from tests.data.characters import make_tokenizer

CHAT = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def decoded(tokenizer, texts):
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in texts]


def test_a_text_has_bos_and_eos_as_the_tokenizer_has_them(write, tokenizer):
    path = write("a.jsonl", {"text": "one"}, {"text": "<s>two</s>"})
    texts = load_texts(str(path), tokenizer, 64)
    assert decoded(tokenizer, texts) == ["<s>one</s>", "<s>two</s>"]
    bare = make_tokenizer(adds_bos=False)
    assert decoded(bare, load_texts(str(path), bare, 64)) == ["one</s>", "<s>two</s>"]
    own_eos = make_tokenizer(adds_eos=True)
    assert decoded(own_eos, load_texts(str(path), own_eos, 64)) == ["<s>one</s>", "<s>two</s>"]


def test_a_chat_has_all_its_turns_and_nothing_but_its_template(write, tokenizer):
    other = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    path = write("a.jsonl", {"messages": CHAT}, {"conversations": other})
    texts = load_texts(str(path), tokenizer, 64)
    assert decoded(tokenizer, texts) == ["<s><u>1+1<a>2<u>2+2<a>4", "<s><u>hi<a>ho"]


def test_a_prompt_is_followed_by_its_continuation(write, tokenizer):
    path = write(
        "a.jsonl",
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": CHAT[:1], "response": CHAT[1:2]},
        {"prompt": CHAT},
    )
    assert decoded(tokenizer, load_texts(str(path), tokenizer, 64)) == [
        "<s>1+1=2</s>",
        "<s><u>1+1<a>2",
        "<s><u>1+1<a>2<u>2+2<a>4",
    ]


def test_another_column_can_be_named(write, tokenizer):
    path = write("a.jsonl", {"body": "x", "id": 3}, {"text": "y", "body": "z"})
    texts = load_texts(str(path), tokenizer, 64, TextOptions(input_key="body"))
    assert decoded(tokenizer, texts) == ["<s>x</s>", "<s>y</s>"]


def test_a_long_text_is_cut_and_counted(write, tokenizer):
    path = write("a.jsonl", {"text": "abcdef"}, {"text": "abc"})
    texts = load_texts(str(path), tokenizer, 5)
    assert decoded(tokenizer, texts) == ["<s>abcd", "<s>abc</s>"]
    assert str(texts.report) == "2 rows, 2 texts, 1 truncated"


def test_bad_rows_are_dropped_and_named(write, tokenizer):
    path = write(
        "a.jsonl",
        {"text": "good"},
        b"{broken",
        {"body": "x"},
        {"text": "  "},
        {"text": 3},
        {"text": "half \ud800"},
        {"messages": CHAT[:1]},
        {"messages": [{"role": "assistant"}]},
        {"messages": [{"role": "tool", "content": "x"}, CHAT[1]]},
        {"prompt": "text", "completion": CHAT[1:2]},
    )
    texts = load_texts(str(path), tokenizer, 64)
    assert len(texts) == 1
    found = {problem.source.rpartition(":")[2]: problem for problem in texts.report.problems}
    assert sorted(found, key=int) == [str(n) for n in range(2, 11)]
    assert found["2"].reason == "broken JSON"
    assert "none of text, messages, conversations, prompt; it has body" in str(found["3"])
    assert found["4"].reason == "empty text"
    assert "this is a int" in str(found["5"])
    assert "surrogate" in str(found["6"])
    assert "turn of the assistant" in str(found["7"])
    assert "a message is" in str(found["8"])
    assert "no tools here" in str(found["9"])
    assert "this is a str and a list" in str(found["10"])
    with pytest.raises(DataError, match="9 bad rows, and --strict_data is on"):
        load_texts(str(path), tokenizer, 64, TextOptions(strict_data=True))


def test_a_half_surrogate_in_a_chat_costs_its_own_row(write, tokenizer):
    bad = [CHAT[0], {"role": "assistant", "content": "\ud800"}]
    texts = load_texts(str(write("a.jsonl", {"messages": bad}, {"messages": CHAT})), tokenizer, 64)
    assert decoded(tokenizer, texts) == ["<s><u>1+1<a>2<u>2+2<a>4"]
    assert texts.report.problems[0].reason == "cannot be encoded"


def test_nothing_usable_is_an_error(write, tokenizer):
    with pytest.raises(DataError, match="no text is left: 1 rows, 0 texts\n1 rows dropped: 1 empty text"):
        load_texts(str(write("a.jsonl", {"text": ""})), tokenizer, 64)
    with pytest.raises(DataError, match="nothing to predict"):
        load_texts(str(write("b.jsonl", {"text": "abc"})), tokenizer, 1)
    with pytest.raises(DataError, match="names no data set"):
        load_texts(" , ", tokenizer, 64)
    with pytest.raises(DataError, match="there is no such file"):
        load_texts("./none.jsonl", tokenizer, 64)


def test_a_chat_without_a_template_is_refused(write):
    path = write("a.jsonl", {"messages": CHAT})
    with pytest.raises(ConfigError, match=r"--pretrain_data has chats, .*no chat template"):
        load_texts(str(path), make_tokenizer(chat=False), 64)


def test_sources_slices_and_parquet(write, tokenizer, tmp_path):
    path = write("a.jsonl", *[{"text": letter} for letter in "abcdef"])
    Dataset.from_list([{"messages": CHAT}]).to_parquet(tmp_path / "b.parquet")
    texts = load_texts(f"{path}@[1:3], {tmp_path / 'b.parquet'}", tokenizer, 64)
    assert decoded(tokenizer, texts) == ["<s>b</s>", "<s>c</s>", "<s><u>1+1<a>2<u>2+2<a>4"]
    assert texts[1:] == [texts[1], texts[2]]


def test_draws_pass_through_all_texts_before_any_comes_again():
    sampler = TextSampler(10, seed=1)
    stream = [row for number in range(10) for row in sampler.draw(number, 4)]
    passes = [stream[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(once) == list(range(10)) for once in passes)
    assert len({tuple(once) for once in passes}) == 4


def test_a_draw_depends_on_its_numbers_alone():
    state = random.getstate()
    forward = [TextSampler(7, seed=3).draw(number, 5) for number in range(6)]
    one = TextSampler(7, seed=3)
    assert [one.draw(number, 5) for number in reversed(range(6))] == forward[::-1]
    assert [TextSampler(7, seed=4).draw(number, 5) for number in range(6)] != forward
    assert random.getstate() == state
    assert TextSampler(1, seed=0).draw(2, 3) == [0, 0, 0]
    with pytest.raises(DataError, match="no text"):
        TextSampler(0, seed=0)


def test_the_loss_counts_all_tokens_but_the_first_and_padding():
    input_ids, attention_mask, loss_mask = collate_texts([[5, 6, 7], [8, 0]], pad_token_id=0)
    assert input_ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert loss_mask.tolist() == [[0, 1, 1], [0, 1, 0]]
    assert (input_ids.dtype, attention_mask.dtype, loss_mask.dtype) == (torch.long, torch.long, torch.float32)
