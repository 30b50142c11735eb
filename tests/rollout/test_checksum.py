"""Hashes of weights: what they must see, and what they must not."""

import pytest
import torch

from lightrft.rollout.checksum import MASK, bit_hash, differences, hash_all

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def value(tensor):
    return int(bit_hash(tensor)) & MASK


@pytest.fixture
def sent():
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (10, 4),
        "model.layers.0.self_attn.q_proj.weight": (8, 4),
        "model.layers.0.self_attn.k_proj.weight": (4, 4),
        "model.layers.0.self_attn.v_proj.weight": (4, 4),
        "model.layers.0.mlp.gate_proj.weight": (6, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.0.input_layernorm.weight": (4,),
    }
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def engine_of(sent, rank=0, size=1):
    """The same weights as an engine holds them: fused, sharded over `size` ranks, the vocabulary padded."""

    def part(tensor):
        return tensor.chunk(size)[rank]

    def fused(*names):
        return torch.cat([part(sent[f"model.layers.0.{name}.weight"]) for name in names])

    padded = torch.cat([sent["model.embed_tokens.weight"], torch.zeros(6, 4).bfloat16()])
    return {
        "model.embed_tokens.weight": part(padded),
        "model.layers.0.self_attn.qkv_proj.weight": fused(
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
        ),
        "model.layers.0.mlp.gate_up_proj.weight": fused("mlp.gate_proj", "mlp.up_proj"),
        "model.layers.0.input_layernorm.weight": sent["model.layers.0.input_layernorm.weight"],
    }


def found(sent, *held, copies=1):
    return differences(hash_all(sent.items()), [hash_all(h.items()) for h in held], PACKED, kv_copies=copies)


def test_a_hand_value():
    """One element of bits 1: the mixing of splitmix64, computed with Python's integers."""
    x = 0xBF58476D1CE4E5B9
    signed = x - (1 << 64)
    x = (signed ^ (signed >> 27)) * 0x94D049BB133111EB & MASK
    signed = x - (1 << 64) if x >> 63 else x
    expected = (signed ^ (signed >> 31)) & MASK
    assert value(torch.tensor([1], dtype=torch.int32)) == expected
    assert value(torch.tensor([1, 1], dtype=torch.int32)) == 2 * expected & MASK


def test_order_and_zeros_do_not_count_and_any_bit_does():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert value(x) == value(x.flip(0)) == value(torch.cat([x, torch.zeros(24).bfloat16()]))
    for bit in range(16):
        other = x.clone()
        other.view(torch.int16)[7] ^= -(1 << 15) if bit == 15 else 1 << bit
        assert value(other) != value(x)


def test_chunks_do_not_show(monkeypatch):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    whole = value(x)
    monkeypatch.setattr("lightrft.rollout.checksum.CHUNK", 7)
    assert value(x) == whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8])
def test_every_width_of_element_has_a_hash(dtype):
    assert value(torch.tensor([1, 2, 3]).to(dtype)) != value(torch.tensor([1, 2, 4]).to(dtype))


def test_fused_padded_and_sharded_weights_are_the_same(sent):
    assert found(sent, engine_of(sent)) == []
    assert found(sent, engine_of(sent, 0, 2), engine_of(sent, 1, 2)) == []


def test_key_value_heads_that_two_ranks_share(sent):
    """One key-value head and two ranks: each has its half of the queries, and all of keys and values."""
    ranks = []
    for rank in range(2):
        held = engine_of(sent, rank, 2)
        q, k, v = (sent[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv")
        held["model.layers.0.self_attn.qkv_proj.weight"] = torch.cat([q.chunk(2)[rank], k, v])
        ranks.append(held)
    assert found(sent, *ranks, copies=2) == []
    assert found(sent, *ranks, copies=1) == ["model.layers.0.self_attn.qkv_proj.weight"]


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.0.mlp.gate_up_proj.weight"])
@pytest.mark.parametrize("size", [1, 2])
def test_one_changed_element_is_named(sent, name, size):
    ranks = [engine_of(sent, rank, size) for rank in range(size)]
    ranks[-1][name] = ranks[-1][name].clone()
    ranks[-1][name].view(-1)[1] += 1
    assert found(sent, *ranks) == [name]


def test_a_replicated_weight_that_is_old_on_one_rank_is_named(sent):
    old = engine_of(sent, 1, 2) | {"model.layers.0.input_layernorm.weight": torch.ones(4).bfloat16()}
    assert found(sent, engine_of(sent, 0, 2), old) == ["model.layers.0.input_layernorm.weight"]


def test_a_tied_head_may_be_a_second_copy_and_must_be_the_same(sent):
    held = engine_of(sent) | {"lm_head.weight": sent["model.embed_tokens.weight"]}
    assert found(sent, held) == []
    assert found(sent, held | {"lm_head.weight": torch.ones(10, 4).bfloat16()}) == ["lm_head.weight"]


def test_what_was_never_sent_is_named_and_other_names_are_compared_by_layer(sent):
    held = engine_of(sent)
    assert found(sent, held | {"model.extra": torch.ones(3)}) == ["*"]
    held["model.layers.0.mixer.in_proj.weight"] = held.pop("model.layers.0.mlp.gate_up_proj.weight")
    assert found(sent, held) == []
    held["model.layers.0.mixer.in_proj.weight"] = held["model.layers.0.mixer.in_proj.weight"] + 1
    assert found(sent, held) == ["model.layers.0.*"]
