"""Log-probs of the policy against the model's own logits."""

import math

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from lightrft.errors import ModelError
from lightrft.models.loading import ModelOptions, load_causal_lm, load_model_config, load_tokenizer
from lightrft.models.policy import Policy

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 0, 0]])
ATTENTION = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
RESPONSE = torch.tensor([[0.0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])


@pytest.fixture
def policy(tiny_model):
    return Policy(load_causal_lm(ModelOptions(str(tiny_model))), temperature=0.7)


def expected_logprobs(model, temperature):
    logits = model(input_ids=IDS, attention_mask=ATTENTION).logits.float() / temperature
    logp = logits[:, :-1].log_softmax(-1)
    out = torch.zeros(2, 6)
    out[:, 1:] = logp.gather(-1, IDS[:, 1:, None]).squeeze(-1)
    return out * RESPONSE, logp


@torch.no_grad()
def test_logprobs_stand_at_their_own_token(policy):
    expected, _ = expected_logprobs(policy.model, 0.7)
    torch.testing.assert_close(policy(IDS, ATTENTION, RESPONSE).logprobs, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_entropy(policy):
    _, logp = expected_logprobs(policy.model, 0.7)
    expected = torch.zeros(2, 6)
    expected[:, 1:] = -(logp.exp() * logp).sum(-1)
    got = policy(IDS, ATTENTION, RESPONSE, with_entropy=True).entropy
    torch.testing.assert_close(got, expected * RESPONSE, rtol=0, atol=1e-5)


def test_temperature_of_a_hand_made_distribution():
    """logits [0, ln 3] at T = 2: log p(1) = ln 3 / 2 - ln(1 + sqrt 3) = -.4557"""

    class Fixed(nn.Module):
        base_model = property(lambda self: self)

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, attention_mask, use_cache):
            logits = torch.tensor([0.0, math.log(3)]).expand(*input_ids.shape, 2) + self.weight
            return type("Output", (), {"logits": logits})

    got = Policy(Fixed(), temperature=2.0)(
        torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.long), torch.tensor([[0.0, 1.0]])
    )
    assert float(got.logprobs[0, 1].detach()) == pytest.approx(-0.4557, abs=1e-4)


def test_padding_does_not_move_a_logprob(policy):
    with torch.no_grad():
        wide = policy(IDS, ATTENTION, RESPONSE).logprobs
        alone = policy(IDS[1:, :4], ATTENTION[1:, :4], RESPONSE[1:, :4]).logprobs
    torch.testing.assert_close(wide[1:, :4], alone, rtol=0, atol=1e-5)


def test_an_all_masked_batch_gives_zero_and_keeps_the_graph(policy):
    out = policy(IDS, ATTENTION, torch.zeros_like(RESPONSE))
    assert out.logprobs.abs().max() == 0.0
    out.logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in policy.parameters())


@torch.no_grad()
def test_an_architecture_that_changes_logits_after_the_head_is_noticed(tiny_model, capsys):
    """A model that caps its logits after the head must not take the shortcut past the cap."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    plain = Policy(model)
    assert plain.whole_forward is None
    plain(IDS, ATTENTION, RESPONSE)
    assert plain.whole_forward is False
    assert capsys.readouterr().out == ""
    inner = model.forward

    def capped(*args, **kwargs):
        output = inner(*args, **kwargs)
        output.logits = 0.1 * torch.tanh(output.logits / 0.1)
        return output

    model.forward = capped
    expected, _ = expected_logprobs(model, 1.0)
    for policy in (Policy(model), Policy(model)):
        torch.testing.assert_close(policy(IDS, ATTENTION, RESPONSE).logprobs, expected, rtol=0, atol=1e-6)
        assert policy.whole_forward is True
    assert capsys.readouterr().out.count("LlamaForCausalLM changes logits after its head") == 1


@torch.no_grad()
def test_gradient_checkpointing_changes_nothing(tiny_model):
    plain, saving = (
        Policy(load_causal_lm(ModelOptions(str(tiny_model), gradient_checkpointing=on)))
        for on in (False, True)
    )
    grads = []
    for policy in (plain, saving):
        with torch.enable_grad():
            policy(IDS, ATTENTION, RESPONSE).logprobs.sum().backward()
        grads.append([p.grad for p in policy.parameters()])
    assert saving.model.is_gradient_checkpointing
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_missing_and_unknown_models_are_named(tmp_path):
    with pytest.raises(ModelError, match="there is no such folder"):
        load_model_config(str(tmp_path / "none"))
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "config.json").write_text('{"model_type": "warp_drive", "architectures": ["WarpDrive"]}')
    with pytest.raises(ModelError, match="warp_drive"):
        load_model_config(str(strange))
    (strange / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    with pytest.raises(ModelError, match="no causal language model"):
        load_model_config(str(strange))
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(str(strange))


def test_dropout_is_off(tiny_model):
    model = load_causal_lm(ModelOptions(str(tiny_model)))
    assert model.training
    assert all(m.attention_dropout == 0.0 for m in model.modules() if hasattr(m, "attention_dropout"))
