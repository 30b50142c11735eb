"""Special tokens where they belong, and one bad prompt that costs no other."""

import pytest

from lightrft.data.processors import Encoded, TextProcessor
from lightrft.errors import ConfigError, DataError
from tests.data.characters import make_tokenizer

CHAT = [{"role": "user", "content": "hi"}]


def encode(prompt, **tokenizer):
    return TextProcessor(make_tokenizer(**tokenizer)).encode([prompt])[0]


def pieces(encoded, **tokenizer):
    return make_tokenizer(**tokenizer).convert_ids_to_tokens(encoded.token_ids)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_chat_has_the_special_tokens_of_its_template_and_no_second_bos(adds_bos):
    encoded = encode(CHAT, adds_bos=adds_bos)
    assert encoded.text == "<s><u>hi<a>"
    assert pieces(encoded) == ["<s>", "<u>", "h", "i", "<a>"]
    assert pieces(encode(CHAT, bos_in_template=False, adds_bos=adds_bos))[0] == "<u>"


def test_a_text_gets_the_tokenizers_bos_once_and_no_eos():
    assert pieces(encode("hi", adds_eos=True)) == ["<s>", "h", "i"]
    assert pieces(encode("<s>hi", adds_eos=True)) == ["<s>", "h", "i"]
    assert pieces(encode("hi", adds_bos=False)) == ["h", "i"]


def test_text_and_chats_mix_and_keep_their_order(processor):
    encoded = processor.encode(["a", CHAT, "b"])
    assert [e.text for e in encoded] == ["a", "<s><u>hi<a>", "b"]
    assert [len(e.token_ids) for e in encoded] == [2, 5, 2]


def test_more_prompts_than_a_tokenizer_call_takes_keep_their_order(processor):
    texts = [str(i) for i in range(2500)]
    encoded = processor.encode(texts)
    assert [processor.decode(e.token_ids) for e in encoded] == texts


def test_a_prompt_that_cannot_be_encoded_costs_no_other(processor):
    tool = [{"role": "tool", "content": "x"}]
    first, refused, surrogate, last = processor.encode(["a", tool, "x\ud800", "b"])
    assert isinstance(refused, DataError)
    assert "no tools here" in str(refused)
    assert isinstance(surrogate, DataError)
    assert "character 1 is half of a surrogate pair" in str(surrogate)
    assert (first.text, last.text) == ("a", "b")


def test_a_chat_without_a_template_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"has no chat template, which --apply_chat_template"):
        encode(CHAT, chat=False)


def test_truncation_keeps_the_end_and_the_bos(processor):
    encoded = processor.encode(["abcdef"])[0]
    cut = processor.truncate(encoded, 4)
    assert cut == Encoded([encoded.token_ids[0], *encoded.token_ids[-3:]], "<s>def")
    without_bos = TextProcessor(make_tokenizer(adds_bos=False))
    assert without_bos.truncate(without_bos.encode(["abcdef"])[0], 4).text == "cdef"


def test_decoding_leaves_special_tokens_out(processor):
    tokenizer = make_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["4", "2", "</s>"])
    assert processor.decode(ids) == "42"
