"""GPUs, precision, packages."""

import importlib.util
from dataclasses import replace

import pytest

from lightrft.config.gpus import Gpu
from lightrft.config.rules.machine import RULES
from tests.config.runs import h200

V100 = Gpu(0, "Tesla V100", 32 << 30, (7, 0))
FOUR = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "x",
}
RUNS = [
    (
        "gpus_are_here",
        {"num_gpus": 2},
        "error: num_gpus (2) is more than the 0 GPUs visible on this host: leave --num_gpus out to train "
        "on the CPU",
    ),
    (
        "gpus_are_here",
        {"num_gpus": 2, "gpus": h200(1)},
        "num_gpus (2) is more than the 1 GPUs visible on this host: use --num_gpus 1",
    ),
    (
        "launcher_agrees",
        {"num_gpus": 2, "environ": FOUR, "gpus": h200(4)},
        "error: num_gpus (2) but torchrun started 4 processes on this host: leave --num_gpus out",
    ),
    (
        "launcher_agrees",
        {"environ": FOUR, "gpus": h200(2)},
        "torchrun started 4 processes on this host but 2 GPUs are visible to each: start 2",
    ),
    (
        "precision_exists",
        {"bf16": True, "gpus": (V100,)},
        "error: bf16: Tesla V100 (sm_70) has no bfloat16, which starts at sm_80: use --no_bf16",
    ),
    (
        "flash_attention_works",
        {"attn_implementation": "flash_attention_2"},
        "error: attn_implementation flash_attention_2 needs a GPU: use sdpa",
    ),
    (
        "flash_attention_works",
        {"attn_implementation": "flash_attention_2", "gpus": h200(1), "no_bf16": True},
        "flash_attention_2 needs bfloat16: use sdpa, or --bf16",
    ),
]


@pytest.mark.parametrize(
    ("rule", "changes", "text"), RUNS, ids=[f"{i}-{r}" for i, (r, _, _) in enumerate(RUNS)]
)
def test_a_broken_rule_says_what_would_do(found, rule, changes, text):
    assert text in found(**changes)[rule]


def test_missing_packages_are_named_with_their_command(found, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    hidden = {"deepspeed", "datasets", "wandb", "tensorboard", "flash_attn"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n in hidden else real(n, *a))
    text = found(use_wandb="p", use_tensorboard=tmp_path / "tb")["packages_are_installed"]
    assert "training needs deepspeed, datasets: pip install deepspeed datasets" in text
    assert "--use_wandb needs the package wandb: pip install wandb" in text
    assert "--use_tensorboard needs the package tensorboard" in text
    assert "packages_are_installed" not in found(dry_run=True)  # a plan can be made on any laptop
    attention = found(attn_implementation="flash_attention_2", gpus=h200(1))["flash_attention_works"]
    assert "pip install flash-attn" in attention


def test_a_run_that_will_not_fit_is_told_what_saves_memory(found):
    changes = {"gpus": h200(1), "micro_train_batch_size": 4}
    text = found(**changes)["memory_suffices"]
    assert text.startswith("warning: the estimate for one GPU, ")
    assert "GiB in the update phase, is over the 140 GiB that it has" in text
    assert text.endswith(
        "try --gradient_checkpointing, --micro_train_batch_size 1, --adam_offload, a shorter --max_len"
    )
    saved = found(**changes, gradient_checkpointing=True, adam_offload=True)
    assert "memory_suffices" not in saved


def test_a_generation_that_will_not_fit_is_told_of_the_engine(found):
    """Weights, reference and Adam take 113.5 GiB of 139.7: 0.18 of the GPU is left for the engine."""
    changes = {"gpus": h200(1), "engine_type": "vllm", "gradient_checkpointing": True}
    text = found(**changes)["memory_suffices"]
    assert "GiB in the generate phase, is over the 140 GiB that it has" in text
    assert text.endswith("try --engine_mem_util 0.18, --adam_offload, a shorter --max_len")
    assert "generate phase" not in found(**changes, engine_mem_util=0.18).get("memory_suffices", "")
    assert "memory_suffices" not in found(**changes, adam_offload=True)
    crowded = found(**changes, engine_dtype="float32")["memory_suffices"]
    assert "--engine_mem_util" not in crowded  # what is left would not hold its weights


def test_an_engine_that_stays_awake_is_told_to_sleep(found):
    changes = {"gpus": h200(1), "engine_type": "vllm", "adam_offload": True, "micro_train_batch_size": 4}
    text = found(**changes, disable_engine_sleep=True)["memory_suffices"]
    assert "GiB in the update phase" in text
    assert "try --enable_engine_sleep, --gradient_checkpointing, --micro_train_batch_size 1" in text
    assert "--enable_engine_sleep" not in found(**changes).get("memory_suffices", "")


def test_advice_names_what_helps_in_the_phase(found):
    many = {"gpus": h200(2), "micro_rollout_batch_size": 128, "gradient_checkpointing": True}
    text = found(**many)["memory_suffices"]
    assert "GiB in the experience phase" in text
    assert text.endswith(
        "try --micro_rollout_batch_size 1, --adam_offload, --zero_stage 3, a shorter --max_len"
    )


HOLDING = [
    {"num_gpus": 4, "dry_run": True},
    {"num_gpus": 1, "gpus": h200(2), "adam_offload": True, "gradient_checkpointing": True},
    {"environ": FOUR},  # four processes on a CPU
    {"environ": FOUR, "gpus": h200(4), "num_gpus": 4},
    {"gpus": (replace(V100, memory_bytes=0),)},
    {"bf16": True},  # the CPU computes in bfloat16
]


@pytest.mark.parametrize("changes", HOLDING)
def test_rules_that_hold_are_silent(found, changes):
    assert found(**changes) == {}


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {rule for rule, _, _ in RUNS} | {
        "packages_are_installed",
        "memory_suffices",
    }
