"""Tiny models must behave like large ones: the tests of everything else stand on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightrft.errors import ConfigError
from lightrft.tools.make_tiny import MAX_LEN, main, make_random_llama, make_tokenizer


def test_the_folder_loads_as_any_model_does(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    ids = tokenizer("12+7=", return_tensors="pt", add_special_tokens=False).input_ids
    assert model(ids).logits.shape == (1, 5, len(tokenizer))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.max_position_embeddings == MAX_LEN


def test_the_chat_template_ends_an_answer_and_opens_the_next(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    chat = [
        {"role": "system", "content": "add"},
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2="},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<u>add<u>1+1=<a>2<eos><u>2+2=<a>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 3 + 4 + 1 + 4 + 6  # every mark is one token, and so is every character
    assert tokenizer.decode(ids) == text


def test_characters_are_tokens_and_strangers_are_unknown() -> None:
    tokenizer = make_tokenizer("chars")
    assert len(tokenizer.encode("x = 12\n", add_special_tokens=False)) == 7
    assert tokenizer.decode(tokenizer.encode("x = 12\n", add_special_tokens=False)) == "x = 12\n"
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_bytes_keep_any_text_in_several_tokens_a_character() -> None:
    tokenizer = make_tokenizer("bytes")
    text = "£5 → 東京 <b>\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids


def test_a_seed_gives_the_same_weights_and_leaves_the_callers_draws_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = make_random_llama(tmp_path / "one", seed=3)
    assert torch.equal(torch.rand(3), expected)
    two = make_random_llama(tmp_path / "two", seed=3)
    other = make_random_llama(tmp_path / "other", seed=4)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, two, other)]
    assert weights[0] == weights[1] != weights[2]


def test_predictions_depend_on_the_context(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    logits = model(torch.tensor([[5, 6, 7], [9, 6, 7]])).logits[:, -1].log_softmax(-1)
    assert (logits[0] - logits[1]).abs().max() > 0.1  # two tokens back still count
    assert logits.exp().max() < 0.9  # and no token is certain


@pytest.mark.parametrize("tie", [True, False])
def test_the_head_is_tied_on_request(tmp_path: Path, tie: bool) -> None:
    names = load_file(make_random_llama(tmp_path, tie=tie) / "model.safetensors").keys()
    assert ("lm_head.weight" in names) is not tie


def test_heads_too_small_for_the_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hidden 96 with 4 heads: .*use --hidden 128"):
        make_random_llama(tmp_path, hidden=96, heads=4)
    with pytest.raises(ConfigError, match="choose chars or bytes"):
        make_random_llama(tmp_path, vocab="words")  # type: ignore[arg-type]


def test_the_command_line_makes_a_model_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["random", str(tmp_path / "made"), "--vocab", "bytes", "--layers", "1"])
    assert (tmp_path / "made" / "model.safetensors").exists()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'made'}\n"
    main(["vision", str(tmp_path / "seer"), "--family", "qwen2_vl"])
    assert (tmp_path / "seer" / "preprocessor_config.json").exists() or (
        tmp_path / "seer" / "processor_config.json"
    ).exists()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'seer'}\n"
    with pytest.raises(SystemExit) as stopped:
        main(["random", str(tmp_path / "bad"), "--hidden", "30"])
    assert stopped.value.code == 2
    assert "use --hidden 64" in capsys.readouterr().err
