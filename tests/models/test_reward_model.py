"""Reward models: where the score is read, against transformers and by hand, and what is refused."""

import json
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from lightrft.distributed.local import LocalStrategy
from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions
from lightrft.models.reward_model import ModuleScorer, last_kept, load_reward_model
from tests.reward_models import PAD, make_reward_model, scores_by_hand

TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14]]
WITH_PAD_IDS = [[5, PAD, 7, 8, PAD], [11, PAD, 13]]  # the id of the pad token, as a token of the text


def options(path, **settings):
    return ModelOptions(str(path), flag="--reward_pretrain", **settings)


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    return make_reward_model(tiny_model, tmp_path / "rm")


def padded(texts, side):
    width = max(len(text) for text in texts) + 2  # no row is free of padding
    ids, mask = torch.full((len(texts), width), PAD), torch.zeros(len(texts), width, dtype=torch.int64)
    for row, text in enumerate(texts):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("texts", [TEXTS, WITH_PAD_IDS], ids=["plain", "pad ids in the text"])
def test_a_score_is_read_at_the_last_token_of_the_mask(checkpoint, texts, side):
    scores = load_reward_model(options(checkpoint))(*padded(texts, side))
    expected = scores_by_hand(checkpoint, texts)
    assert scores.dtype == torch.float32
    assert (
        expected.diff().abs().min() > 1e-2
    )  # rows that could be mistaken for each other would prove nothing
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_scores_are_those_of_transformers_where_no_text_holds_the_pad_id(checkpoint):
    ids, mask = padded(TEXTS, "right")
    oracle = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    expected = oracle(input_ids=ids, attention_mask=mask).logits[:, 0]
    scores = load_reward_model(options(checkpoint))(ids, mask)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_padding_does_not_move_absolute_positions(tmp_path):
    """Rotary positions are relative, so a Llama hides a shift; GPT-2's learned ones do not."""
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, num_labels=1, pad_token_id=PAD
    )
    torch.manual_seed(5)
    oracle = GPT2ForSequenceClassification(config).eval()
    oracle.score.weight.normal_()
    oracle.transformer.wpe.weight.normal_()
    oracle.save_pretrained(tmp_path)
    expected = torch.cat([oracle(torch.tensor([text])).logits[:, 0] for text in TEXTS])
    model = load_reward_model(options(tmp_path))
    for side in ("left", "right"):
        torch.testing.assert_close(model(*padded(TEXTS, side)), expected, rtol=0, atol=1e-5)


def test_no_graph_is_kept_even_where_parameters_could_have_gradients(checkpoint):
    model = load_reward_model(options(checkpoint)).requires_grad_(True)
    assert model(*padded(TEXTS, "right")).grad_fn is None


def test_a_reward_model_is_frozen_and_in_the_asked_dtype(checkpoint):
    model = load_reward_model(options(checkpoint, dtype=torch.bfloat16))
    scores = model(*padded(TEXTS, "right"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(module.training for module in model.modules())
    assert scores.dtype == torch.float32
    assert not scores.requires_grad


def test_a_score_that_is_not_finite_is_never_made_a_number(checkpoint):
    model = load_reward_model(options(checkpoint))
    with torch.no_grad():
        model.model.score.weight.fill_(float("nan"))
    assert model(*padded(TEXTS, "right")).isnan().all()


@torch.no_grad()
def test_the_head_computes_in_float32(checkpoint):
    """bfloat16 keeps 8 bits: scores of the size of 1 would be multiples of 2 ** -7 there."""
    model = load_reward_model(options(checkpoint, dtype=torch.bfloat16))
    hidden = torch.randn(100, 64).bfloat16()
    scores = model.model.score(hidden)[:, 0]
    exact = hidden.double() @ model.model.score.weight[0].double()
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=1e-4)
    assert (scores.bfloat16().float() - scores).abs().max() > 1e-3


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_scores_come_in_the_order_of_the_texts_whatever_the_micro_batch(checkpoint, size):
    texts = [TEXTS[2], *WITH_PAD_IDS, TEXTS[0], TEXTS[1], TEXTS[2]]
    scorer = ModuleScorer(LocalStrategy().prepare_parked(load_reward_model(options(checkpoint))), size, "cpu")
    expected = scores_by_hand(checkpoint, texts)
    torch.testing.assert_close(torch.tensor(scorer(texts)), expected, rtol=0, atol=1e-5)


class Watched:
    """A parked model that knows how many of its like are in use, and refuses to compute when it is not."""

    in_use: ClassVar[list] = []

    def __init__(self, module):
        self.module = module
        self.widths = []

    @contextmanager
    def __call__(self):
        assert Watched.in_use == []
        Watched.in_use.append(self)
        yield self.compute
        Watched.in_use.remove(self)

    def compute(self, ids, mask):
        assert Watched.in_use == [self]
        self.widths.append(ids.shape[1])
        return self.module(ids, mask)


def test_of_two_models_one_is_resident_at_a_time(tiny_model, checkpoint, tmp_path):
    other = make_reward_model(tiny_model, tmp_path / "other", seed=6)
    watched = [Watched(load_reward_model(options(path))) for path in (checkpoint, other)]
    texts = [TEXTS[2], *TEXTS, TEXTS[0]]
    first, second = (torch.tensor(ModuleScorer(parked, 2, "cpu")(texts)) for parked in watched)
    torch.testing.assert_close(first, scores_by_hand(checkpoint, texts), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second, scores_by_hand(other, texts), rtol=1e-5, atol=1e-5)
    assert Watched.in_use == []
    assert watched[0].widths == [6, 3, 1]  # texts of like length go together


def test_no_model_is_fetched_for_no_texts():
    def parked():
        raise AssertionError

    assert ModuleScorer(parked, 2, "cpu")([]) == []


def test_the_last_kept_token_by_hand():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
    assert last_kept(mask).tolist() == [1, 3, 2, 3]
    with pytest.raises(ValueError, match=r"rows \[1\] of 2 have no token"):
        last_kept(torch.tensor([[1, 0], [0, 0]]))


def test_a_model_that_is_no_language_model_is_named_for_what_it_is(tmp_path):
    """The message of `--pretrain` would send the user after a causal language model."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "architectures": ["ViTModel"]}))
    with pytest.raises(ModelError, match=r"ViTModel.*a reward model is a \.\.\.ForSequenceClassification"):
        load_reward_model(options(tmp_path))


def test_a_language_model_is_refused(tiny_model):
    with pytest.raises(ModelError, match=r"--reward_pretrain .*ForCausalLM.*made up at random"):
        load_reward_model(options(tiny_model))


def test_several_labels_are_refused(tiny_model, tmp_path):
    with pytest.raises(ModelError, match="3 labels; a reward model has 1"):
        load_reward_model(options(make_reward_model(tiny_model, tmp_path / "three", labels=3)))


def test_an_encoder_is_refused_by_its_head(tmp_path):
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="BertForSequenceClassification has no head named 'score'"):
        load_reward_model(options(tmp_path))


def test_a_checkpoint_without_its_head_is_refused(checkpoint):
    weights = checkpoint / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if name != "score.weight"}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights of the model: score\.weight"):
        load_reward_model(options(checkpoint))


def test_the_checkpoints_of_these_tests_name_their_architecture(checkpoint):
    (architecture,) = json.loads((checkpoint / "config.json").read_text())["architectures"]
    assert architecture.endswith("ForSequenceClassification")
