"""Sizes from config.json and the memory estimate, against numbers worked out by hand."""

import json

import pytest

from lightrft.config.memory import GIB, engine_minimum, estimate_memory
from lightrft.config.model_shape import read_shape
from tests.config.runs import QWEN_7B, QWEN_VL, h200

QWEN_7B_PARAMETERS = 7_615_616_512  # as published
LLAMA = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(QWEN_7B, QWEN_7B_PARAMETERS), (LLAMA, 134_515_008), (MIXTRAL, 46_702_792_704)],
    ids=["Qwen2.5-7B", "SmolLM2-135M", "Mixtral-8x7B"],
)
def test_parameter_counts_are_those_of_the_published_models(config, parameters):
    assert read_shape(config).parameters == parameters


def test_the_language_part_of_a_vision_model():
    nested = {"model_type": "x_vl", "vision_config": {}, "text_config": QWEN_7B}
    assert read_shape(nested).parameters == QWEN_7B_PARAMETERS
    assert read_shape(QWEN_VL).parameters == QWEN_7B_PARAMETERS


@pytest.mark.parametrize("config", [None, {}, {"model_type": "gpt2"}, QWEN_7B | {"kv_lora_rank": 512}])
def test_other_architectures_have_no_shape(config):
    assert read_shape(config) is None


def rows(config):
    return {row.name: [value / GIB for value in row.bytes] for row in estimate_memory(config).rows}


def test_weights_gradients_and_optimizer_of_zero(make):
    """P = 7.6156e9. bf16 weights 2P = 14.185 GiB; Adam 12P / 8 ranks = 10.639; ZeRO-2 gradients 2P / 8."""
    table = rows(make(gpus=h200(8), rollout_batch_size=8))
    assert table["policy weights"] == pytest.approx([14.185] * 3, abs=1e-3)
    assert table["reference weights"] == pytest.approx([14.185] * 3, abs=1e-3)
    assert table["optimizer states"] == pytest.approx([10.639] * 3, abs=1e-3)
    assert table["gradients"] == pytest.approx([0, 0, 14.185 / 8], abs=1e-3)
    assert rows(make(gpus=h200(8), zero_stage=1))["gradients"][2] == pytest.approx(14.185, abs=1e-3)
    assert rows(make(gpus=h200(8), zero_stage=3))["policy weights"][0] == pytest.approx(14.185 / 8, abs=1e-3)
    assert rows(make(gpus=h200(8), no_bf16=True))["policy weights"][0] == pytest.approx(28.370, abs=1e-3)


def test_the_cache_of_the_hf_engine(make):
    """2 x 28 layers x 4 heads x 128 = 28672 values a token; 2 bytes, 4096 tokens, 2 samples: 0.4375 GiB."""
    assert rows(make(gpus=h200(1)))["KV cache"] == pytest.approx([0.4375, 0, 0])


def test_logits_cost_twelve_bytes_each_with_gradients(make):
    """8192 response tokens x 152064 x 12 bytes = 13.92 GiB: what an eager log-softmax was measured at."""
    changes = {"micro_train_batch_size": 4, "micro_rollout_batch_size": 4}
    table = rows(make(gpus=h200(1), **changes))
    assert table["logits"] == pytest.approx([0, 6.961, 13.922], abs=1e-3)
    fused = rows(make(gpus=h200(1), fused_linear_logprob=True, **changes))["logits"]
    assert fused == pytest.approx([0, 2.320, 2.320], abs=1e-3)  # 4096 x 152064 x 4 bytes


def test_checkpointing_and_offloading_save_where_they_say(make):
    plain, saved = rows(make(gpus=h200(1))), rows(make(gpus=h200(1), gradient_checkpointing=True))
    assert saved["activations"][2] < plain["activations"][2] / 5
    assert saved["activations"][1] == plain["activations"][1]
    offloaded = estimate_memory(make(gpus=h200(1), adam_offload=True))
    assert "optimizer states" not in {row.name for row in offloaded.rows}
    assert offloaded.host_bytes == 12 * QWEN_7B_PARAMETERS


def test_an_engine_takes_its_share_while_it_is_awake(make):
    changes = {"gpus": h200(1), "engine_type": "vllm", "engine_mem_util": 0.6}
    assert rows(make(**changes))["engine vllm"] == pytest.approx([0.6 * 150e9 / GIB, 0, 0])
    awake = rows(make(**changes, disable_engine_sleep=True))["engine vllm"]
    assert awake == pytest.approx([0.6 * 150e9 / GIB] * 3)


def test_an_engine_on_a_cpu_keeps_its_memory(make):
    """fp32: 4P = 28.370 GiB, 64 sequences of 4096 tokens x 28672 values x 4 bytes = 0.4375 each, 0.25."""
    taken = 28.370 + 64 * 0.4375 + 0.25
    assert rows(make(engine_type="vllm"))["engine vllm"] == pytest.approx([taken] * 3, abs=1e-3)
    few = rows(make(engine_type="vllm", engine_max_num_seqs=8))["engine vllm"][0]
    assert few == pytest.approx(28.370 + 8 * 0.4375 + 0.25, abs=1e-3)


def test_the_least_that_an_engine_needs(make):
    """Weights over tp ranks, the cache of 4096 tokens over at most 4 key-value heads, a quarter of a GiB."""
    config, shape = make(engine_type="vllm", gpus=h200(1)), read_shape(QWEN_7B)
    assert engine_minimum(config, shape, 1) / GIB == pytest.approx(14.185 + 0.21875 + 0.25, abs=1e-3)
    assert engine_minimum(config, shape, 4) / GIB == pytest.approx(14.185 / 4 + 0.21875 / 4 + 0.25, abs=1e-3)
    assert engine_minimum(config, shape, 28) / GIB == pytest.approx(
        14.185 / 28 + 0.21875 / 4 + 0.25, abs=1e-3
    )


def test_zero_3_gathers_weights_to_compute(make):
    """DeepSpeed holds up to 1e9 parameters whole: 2 bytes each, 1.863 GiB; a small model is whole at once."""
    changes = {"gpus": h200(8), "rollout_batch_size": 8}
    table = rows(make(**changes, zero_stage=3))
    assert table["gathered weights"] == pytest.approx([0, 1.863, 1.863], abs=1e-3)
    assert table["gradients"][2] == pytest.approx(14.185 / 8, abs=1e-3)
    assert "gathered weights" not in rows(make(**changes))
    assert "gathered weights" not in rows(make(gpus=h200(1), zero_stage=3))


def test_fsdp_gathers_its_largest_layer(make):
    """The embeddings of 152064 x 3584, 1.015 GiB; one layer has 0.233e9 parameters."""
    table = rows(make(gpus=h200(8), fsdp=True))
    assert table["gathered weights"][2] == pytest.approx(1.015, abs=1e-3)
    assert read_shape(QWEN_7B).layer_parameters == 233_057_792


def test_the_hf_engine_holds_a_copy_beside_sharded_weights(make):
    changes = {"gpus": h200(8), "rollout_batch_size": 8}
    assert rows(make(**changes, zero_stage=3))["engine hf"] == pytest.approx([14.185] * 3, abs=1e-3)
    assert "engine hf" not in rows(make(**changes))
    assert "engine hf" not in rows(make(**changes, zero_stage=3, engine_type="vllm"))


def test_no_reference_model_without_a_kl_penalty(make):
    assert "reference weights" not in rows(make(init_kl_coef=0))


def test_totals_and_limit(make):
    memory = estimate_memory(make(gpus=h200(2)))
    assert memory.totals[2] == sum(row.bytes[2] for row in memory.rows)
    assert memory.limit == 150_000_000_000
    assert estimate_memory(make()).limit == 0


def test_a_model_without_a_formula_is_said_to_have_none(make, model):
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert estimate_memory(make()) is None
    assert "memory: no estimate" in make().plan().render()


def test_the_estimate_says_what_it_leaves_out(make):
    text = " ".join(make(adam_offload=True, dry_run=True).plan().render().split())
    assert "An estimate: every sequence as long as allowed" in text
    assert "Optimizer states in host memory: 85.11 GiB per rank" in text
    assert "The vision tower is not counted" in " ".join(make(modality="vision").plan().render().split())
