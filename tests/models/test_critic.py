"""Values: alignment, the start at zero, and the way to disk and back."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM

from lightrft.distributed.local import LocalStrategy
from lightrft.distributed.strategy import OptimizerOptions
from lightrft.errors import ModelError
from lightrft.models.critic import VALUE_HEAD_FILE, Critic, load_critic, save_critic
from lightrft.models.loading import ModelOptions, load_tokenizer
from lightrft.tools.make_tiny import make_random_llama

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 0, 0]])
ATTENTION = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
RESPONSE = torch.tensor([[0.0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])


def options(path, **settings):
    return ModelOptions(str(path), flag="--critic_pretrain", **settings)


def with_a_head(critic):
    """A head that says something: values of each state then differ."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        critic.value_head.weight.copy_(torch.randn(critic.value_head.weight.shape, generator=generator))
        critic.value_head.bias.fill_(0.25)
    return critic


@pytest.fixture
def critic(tiny_model):
    return with_a_head(load_critic(options(tiny_model)))


def saved(critic, folder, tokenizer_of):
    trained = LocalStrategy().prepare_trainable(critic, OptimizerOptions())
    save_critic(folder, dict(trained.full_parameters()), critic, load_tokenizer(str(tokenizer_of)))
    return folder


@torch.no_grad()
def test_a_value_is_of_the_state_before_its_token(tiny_model, critic):
    """By hand: the language model's last hidden state at t - 1, times the head, plus its bias."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    output = model(input_ids=IDS, attention_mask=ATTENTION, output_hidden_states=True)
    hidden = output.hidden_states[-1]
    expected = torch.zeros(2, 6)
    for row in range(2):
        for t in range(1, 6):
            if RESPONSE[row, t]:
                expected[row, t] = hidden[row, t - 1] @ critic.value_head.weight[0] + 0.25
    values = critic(IDS, ATTENTION, RESPONSE)
    assert values.dtype == torch.float32
    assert len(values[values != 0].unique()) == 5
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_token_does_not_change_its_own_value(critic):
    other = IDS.clone()
    other[0, 4] = 20
    before, after = critic(IDS, ATTENTION, RESPONSE), critic(other, ATTENTION, RESPONSE)
    torch.testing.assert_close(before[0, :5], after[0, :5], rtol=0, atol=1e-6)
    assert (before[0, 5] - after[0, 5]).abs() > 1e-3


def test_a_new_critic_values_everything_at_zero_and_can_learn(tiny_model):
    critic = load_critic(options(tiny_model))
    values = critic(IDS, ATTENTION, RESPONSE)
    assert values.abs().max() == 0
    ((values - RESPONSE) ** 2).sum().backward()
    assert critic.value_head.weight.grad.abs().max() > 0
    assert critic.value_head.bias.grad.item() == pytest.approx(-10.0)  # 2 * (0 - 1) on each of 5 tokens


@torch.no_grad()
def test_padding_does_not_move_a_value(critic):
    wide = critic(IDS, ATTENTION, RESPONSE)
    alone = critic(IDS[1:, :4], ATTENTION[1:, :4], RESPONSE[1:, :4])
    torch.testing.assert_close(wide[1:, :4], alone, rtol=0, atol=1e-6)


def test_an_all_masked_batch_gives_zero_and_keeps_the_graph(critic):
    values = critic(IDS, ATTENTION, torch.zeros_like(RESPONSE))
    assert values.shape == (2, 6)
    assert values.abs().max() == 0.0
    values.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in critic.parameters())


@pytest.mark.parametrize("tie", [True, False])
def test_no_lm_head_is_kept(tmp_path, tie):
    folder = make_random_llama(tmp_path / "model", tie=tie)
    critic = load_critic(options(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)
    decoder = sum(p.numel() for p in model.base_model.parameters())
    assert sum(p.numel() for p in critic.parameters()) == decoder + 64 + 1
    assert not any("lm_head" in name for name, _ in critic.named_parameters())


@torch.no_grad()
@pytest.mark.parametrize("tie", [True, False])
def test_save_and_load_give_the_same_values(tmp_path, tie):
    model = make_random_llama(tmp_path / "model", tie=tie)
    critic = with_a_head(load_critic(options(model)))
    for parameter in critic.decoder.parameters():
        parameter.mul_(1.01)  # trained: no longer what --critic_pretrain holds
    folder = saved(critic, tmp_path / "critic", model)
    again = load_critic(options(folder))
    assert torch.equal(again(IDS, ATTENTION, RESPONSE), critic(IDS, ATTENTION, RESPONSE))
    assert again.training
    plain = AutoModel.from_pretrained(folder)
    hidden = plain(input_ids=IDS, attention_mask=ATTENTION).last_hidden_state
    torch.testing.assert_close(
        hidden[0, 2] @ again.value_head.weight[0] + 0.25, critic(IDS, ATTENTION, RESPONSE)[0, 3]
    )
    assert load_tokenizer(str(folder)).eos_token_id == load_tokenizer(str(model)).eos_token_id


def test_a_critic_in_bfloat16_has_one_dtype_and_values_in_float32(tiny_model):
    critic = with_a_head(load_critic(options(tiny_model, dtype=torch.bfloat16)))
    assert {p.dtype for p in critic.parameters()} == {torch.bfloat16}
    values = critic(IDS, ATTENTION, RESPONSE)
    hidden = critic.decoder(input_ids=IDS, attention_mask=ATTENTION).last_hidden_state[0, 2]
    expected = hidden.float() @ critic.value_head.weight[0].float() + 0.25
    assert values.dtype == torch.float32
    torch.testing.assert_close(values[0, 3], expected, rtol=1e-6, atol=1e-6)


def test_gradient_checkpointing_and_dropout_are_as_the_policy_s(tiny_model, tmp_path, critic):
    folder = saved(critic, tmp_path / "critic", tiny_model)
    gradients = []
    for path, saving in ((folder, False), (folder, True), (tiny_model, True)):
        loaded = load_critic(options(path, gradient_checkpointing=saving))
        assert loaded.decoder.is_gradient_checkpointing == saving
        assert not any(m.p for m in loaded.modules() if isinstance(m, nn.Dropout))
        with_a_head(loaded)(IDS, ATTENTION, RESPONSE).sum().backward()
        gradients.append([p.grad for p in loaded.parameters()])
    for plain, *others in zip(*gradients, strict=True):
        for other in others:
            torch.testing.assert_close(plain, other)


def test_messages_name_the_flag(tmp_path):
    with pytest.raises(ModelError, match=r"^--critic_pretrain .*there is no such folder"):
        load_critic(options(tmp_path / "none"))
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    with pytest.raises(ModelError, match=r"^--critic_pretrain .*no causal language model"):
        load_critic(options(strange))


def test_a_value_head_of_another_model_is_refused(tiny_model, tmp_path, critic):
    folder = saved(critic, tmp_path / "critic", tiny_model)
    save_file({"weight": torch.zeros(1, 32), "bias": torch.zeros(1)}, folder / VALUE_HEAD_FILE)
    with pytest.raises(ModelError, match=r"^--critic_pretrain .*value_head.safetensors does not fit.*32"):
        load_critic(options(folder))
    (folder / VALUE_HEAD_FILE).write_bytes(b"cut")
    with pytest.raises(ModelError, match=r"^--critic_pretrain .*value_head.safetensors does not fit"):
        load_critic(options(folder))


def test_what_is_saved_is_the_given_state(tiny_model, tmp_path, critic):
    """A state that was gathered from shards is written, not what the module holds at the time."""
    state = {name: torch.full_like(p, 0.5) for name, p in critic.named_parameters()}
    save_critic(tmp_path / "critic", state, critic, load_tokenizer(str(tiny_model)))
    written = load_file(tmp_path / "critic" / "model.safetensors")
    assert set(written) == {name.removeprefix("decoder.") for name in state if name.startswith("decoder.")}
    assert all((tensor == 0.5).all() for tensor in written.values())
    assert (load_file(tmp_path / "critic" / VALUE_HEAD_FILE)["weight"] == 0.5).all()
    assert json.loads((tmp_path / "critic" / "config.json").read_text())["architectures"] == ["LlamaModel"]


def test_a_model_without_a_decoder_of_its_own_is_refused(tiny_model, monkeypatch):
    class Whole(nn.Module):
        base_model = property(lambda self: self)

    monkeypatch.setattr("lightrft.models.critic.load_causal_lm", lambda options: Whole())
    with pytest.raises(ModelError, match="Whole has no decoder apart from its LM head"):
        load_critic(options(tiny_model))


def test_the_device_is_chosen(tiny_model):
    decoder = AutoModel.from_pretrained(tiny_model)
    assert {p.device.type for p in Critic(decoder, "meta").parameters()} == {"meta"}
