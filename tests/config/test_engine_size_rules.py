"""How the engine's ranks share the model, and whether it fits its share of the memory."""

import json

import pytest

from lightrft.config.rules.engine_sizes import RULES
from tests.config.runs import QWEN_7B, h200

GPU = {"gpus": h200(1), "engine_type": "vllm"}
EIGHT = {"gpus": h200(8), "engine_type": "vllm", "rollout_batch_size": 8, "train_batch_size": 32}


@pytest.mark.parametrize(
    ("size", "use"),
    [(8, "4"), (3, "2 or 4")],  # 28 heads, 4 key-value heads, 8 ranks: 1, 2 and 4 fit
)
def test_heads_that_the_ranks_cannot_share(found, size, use):
    assert found(**EIGHT, engine_tp_size=size)["tensor_parallel_divides_heads"] == (
        f"error: engine_tp_size ({size}) must divide the model's 28 attention heads, and divide its 4 "
        f"key-value heads or be a multiple of them: use {use}"
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_heads_that_the_ranks_can_share(found, size):
    assert "tensor_parallel_divides_heads" not in found(**EIGHT, engine_tp_size=size)


def test_key_value_heads_are_repeated_where_there_are_fewer_than_ranks(found, model):
    (model / "config.json").write_text(json.dumps(QWEN_7B | {"num_attention_heads": 32}))
    assert "tensor_parallel_divides_heads" not in found(**EIGHT, engine_tp_size=8)


def test_without_an_engine_or_a_shape_there_is_nothing_to_divide(found, model):
    assert "tensor_parallel_divides_heads" not in found(**EIGHT | {"engine_type": "hf"}, engine_tp_size=8)
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "tensor_parallel_divides_heads" not in found(**EIGHT, engine_tp_size=8)


def test_a_share_that_cannot_hold_the_weights(found):
    """2 x 7,615,616,512 bytes + 4096 tokens x 57,344 + 2^28 = 14.65 GiB, of 139.70: 0.11 is enough."""
    text = found(**GPU, engine_mem_util=0.1)["engine_memory_holds_the_weights"]
    assert text == (
        "error: engine_mem_util (0.1) gives the engine 14.0 of the GPU's 140 GiB, and the weights with room "
        "for one sequence take 14.7: use --engine_mem_util 0.11 or more"
    )
    assert "engine_memory_holds_the_weights" not in found(**GPU, engine_mem_util=0.11)
    wide = found(**GPU, engine_mem_util=0.11, engine_dtype="float32")["engine_memory_holds_the_weights"]
    assert "take 29.1: use --engine_mem_util 0.21 or more" in wide


def test_more_ranks_hold_what_one_cannot(found):
    changes = {**EIGHT, "engine_mem_util": 0.06}
    text = found(**changes)["engine_memory_holds_the_weights"]
    assert text.endswith("use --engine_mem_util 0.11 or more, or --engine_tp_size 2")
    assert "engine_memory_holds_the_weights" not in found(**changes, engine_tp_size=2)


def test_a_model_that_no_share_of_the_gpu_holds(found, model):
    (model / "config.json").write_text(json.dumps(QWEN_7B | {"num_hidden_layers": 400}))
    text = found(**GPU)["engine_memory_holds_the_weights"]
    assert text.endswith("use more or larger GPUs, or a smaller model")
    assert found(**EIGHT)["engine_memory_holds_the_weights"].endswith("use --engine_tp_size 4")


def test_memory_that_is_not_known_is_not_judged(found):
    changes = {"engine_type": "vllm", "engine_mem_util": 0.01}
    assert "engine_memory_holds_the_weights" not in found(**changes)  # a CPU
    assert "engine_memory_holds_the_weights" not in found(**changes, dry_run=True, num_gpus=1)
    assert "engine_memory_holds_the_weights" not in found(gpus=h200(1), engine_mem_util=0.01)  # hf


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {
        "tensor_parallel_divides_heads",
        "engine_memory_holds_the_weights",
    }
