"""The SGLang adapter over a stand-in: what it asks of the engine, and in which order.

That the real engine does as it is asked is the matter of the contract suite, on a GPU.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from lightrft.errors import EngineError
from lightrft.rollout import sglang, sglang_processes
from lightrft.rollout.base import EngineOptions, SamplingOptions
from lightrft.rollout.groups import EngineGroup
from lightrft.types import Prompt

PROMPTS = [Prompt(i, [10 + i] * (i + 1), "") for i in range(3)]


class Engine:
    """Keeps a diary of what it is asked, and the weights that it is sent."""

    def __init__(self, refuses=""):
        self.diary, self.weights, self.refuses = [], {}, refuses
        self.loop = asyncio.new_event_loop()
        self.tokenizer_manager = SimpleNamespace(
            flush_cache=self._flush, update_weights_from_tensor=self._update
        )

    async def async_generate(self, input_ids, sampling_params, return_logprob):
        tokens = [input_ids[0], 2][: sampling_params["max_new_tokens"]]
        about = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [(-1.0, t, None) for t in tokens],
        }
        return {"output_ids": tokens, "meta_info": about}

    async def _flush(self, timeout_s):
        self.diary.append("flush")
        return SimpleNamespace(success=True, message="")

    async def _update(self, request, http):
        if self.refuses:
            return False, self.refuses
        assert request.flush_cache is False
        sent = pickle.loads(request.serialized_named_tensors[0])
        if request.load_format == "flattened_bucket":
            self.diary.append("weights")
            self.weights.update(sent["metadata"])
        else:
            self.diary.append(request.load_format.rpartition(".")[2])
            if request.load_format.endswith("write_hashes"):
                held = SimpleNamespace(named_parameters=self.weights.items)
                sglang_processes.write_hashes(held, sent)
        return True, ""

    def release_memory_occupation(self, tags):
        self.diary.append(f"release {' '.join(tags)}")

    def resume_memory_occupation(self, tags):
        self.diary.append(f"resume {' '.join(tags)}")

    def shutdown(self):
        self.loop.close()
        self.diary.append("shutdown")


class SessionEngine(Engine):
    def begin_weight_update(self):
        self.diary.append("begin")
        return True, ""

    def end_weight_update(self):
        self.diary.append("end")
        return True, ""


class Flat:
    def __init__(self, named_tensors):
        self.named = named_tensors

    def get_flattened_tensor(self):
        return torch.cat([t.flatten() for _, t in self.named])

    def get_metadata(self):
        return dict(self.named)


class Policy:
    def __init__(self, *names):
        self.weights = {name: torch.randn(3, 2) for name in names}

    def parameter_buckets(self, max_bytes):
        yield from ([(f"model.{name}", tensor)] for name, tensor in self.weights.items())


@pytest.fixture
def build(monkeypatch):
    """Makes an adapter around a stand-in engine."""
    modules = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.managers": {},
        "sglang.srt.weight_sync": {},
        "sglang.srt.utils": {"MultiprocessingSerializer": SimpleNamespace(serialize=pickle.dumps)},
        "sglang.srt.utils.patch_torch": {"monkey_patch_torch_reductions": lambda: None},
        "sglang.srt.managers.io_struct": {"UpdateWeightsFromTensorReqInput": SimpleNamespace},
        "sglang.srt.weight_sync.tensor_bucket": {"FlattenedTensorBucket": Flat},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sglang, "sglang_version", lambda: "0.5.13")
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    before = signal.getsignal(signal.SIGQUIT)
    made = []

    def make(engine=None, **changes):
        stand_in = engine or Engine()
        monkeypatch.setattr(sglang.SGLangEngine, "_build", lambda self: stand_in)
        tokenizer = SimpleNamespace(
            batch_decode=lambda rows, skip_special_tokens: [f"{len(ids)} tokens" for ids in rows]
        )
        engine_options = EngineOptions("model", torch.float32, 64, **changes)
        device, group = torch.device("cpu"), EngineGroup()
        made.append(sglang.SGLangEngine(engine_options, tokenizer, {2}, group, device))
        return made[-1], stand_in.diary

    yield make
    for adapter in made:
        if adapter._engine is not None:
            adapter._engine.loop.close()
    signal.signal(signal.SIGQUIT, before)


SAMPLING = SamplingOptions(n=2, max_new_tokens=4, max_len=64)


def test_weights_go_only_where_others_follow_and_come_back_before_the_cache(build):
    engine, diary = build(check_every=0)
    engine.start(Policy("a"))
    diary.clear()
    engine.sleep(weights_change=True)
    engine.sync_weights(Policy("a", "b"))
    engine.wake()
    expected = [
        "flush",
        "release kv_cache cuda_graph weights",
        "resume weights",
        "weights",
        "weights",
        "flush",
    ]
    assert diary == [*expected, "resume kv_cache cuda_graph"]
    assert engine.policy_version == 1


def test_a_nap_keeps_the_weights(build):
    engine, diary = build(check_every=0)
    engine.start(Policy("a"))
    diary.clear()
    engine.sleep(weights_change=False)
    engine.sleep()
    engine.wake()
    engine.wake()
    assert diary == ["flush", "release kv_cache cuda_graph", "resume kv_cache cuda_graph"]
    assert len(engine.generate(PROMPTS, SAMPLING)) == 6


def test_without_sleep_memory_stays_but_the_rules_hold(build):
    engine, diary = build(check_every=0, sleep=False)
    engine.start(Policy("a"))
    engine.sleep()
    with pytest.raises(RuntimeError, match="while the engine sleeps"):
        engine.generate(PROMPTS, SAMPLING)
    engine.sync_weights(Policy("a"))
    engine.wake()
    assert not any("re" in entry.split()[0] for entry in diary)  # neither released nor resumed


def test_generating_without_weights_is_refused(build):
    engine, _ = build(check_every=0)
    with pytest.raises(RuntimeError, match=r"before start\(\)"):
        engine.generate(PROMPTS, SAMPLING)
    engine.start(Policy("a"))
    engine.sleep()
    with pytest.raises(RuntimeError, match="sync_weights comes first"):
        engine.wake()
    with pytest.raises(RuntimeError, match="while the engine sleeps"):
        engine.generate(PROMPTS, SAMPLING)


def test_newer_versions_are_updated_in_sessions(build):
    engine, diary = build(SessionEngine(), check_every=1)
    engine.start(Policy("a"))
    assert diary == ["begin", "weights", "write_hashes", "end", "flush"]
    diary.clear()
    engine.generate(PROMPTS, SAMPLING)
    assert diary == ["begin", "seed_generators", "end"]


def test_rollouts_are_stamped_and_in_order(build):
    engine, _ = build(check_every=0)
    engine.start(Policy("a"))
    engine.sync_weights(Policy("a"))
    found = engine.generate(PROMPTS, SAMPLING)
    assert [(r.prompt.index, r.sample_index) for r in found] == [(i, k) for i in range(3) for k in range(2)]
    assert {(r.policy_version, r.text, r.finish_reason) for r in found} == {(1, "2 tokens", "stop")}
    assert engine.generate([], SAMPLING) == []


def test_a_weight_that_arrives_changed_is_named(build, monkeypatch):
    engine, _ = build(check_every=1)
    engine.start(Policy("a", "b"))
    load = engine._load
    monkeypatch.setattr(engine, "_load", lambda bucket: load([(n, t + (n == "b")) for n, t in bucket]))
    with pytest.raises(EngineError, match=r"SGLang 0\.5\.13\) does not hold what was sent: b\."):
        engine.sync_weights(Policy("a", "b"))


def test_a_refusal_says_what_was_being_done_and_which_flags_give_memory(build):
    engine, _ = build(Engine(refuses="CUDA out of memory"))
    with pytest.raises(EngineError, match=r"weight sync failed \(SGLang 0\.5\.13\).*--engine_mem_util"):
        engine.start(Policy("a"))


def test_closing_ends_the_engine_once(build):
    engine, diary = build(check_every=0)
    engine.close()
    engine.close()
    assert diary == ["shutdown"]
    with pytest.raises(RuntimeError, match="sleeps"):
        engine.generate(PROMPTS, SAMPLING)


# -- the version


def test_a_missing_or_old_installation_is_told_what_to_install(monkeypatch):
    def missing(name):
        raise sglang.PackageNotFoundError(name)

    monkeypatch.setattr(sglang, "version", missing)
    with pytest.raises(EngineError, match=r"pip install 'lightrft\[sglang\]'"):
        sglang.sglang_version()
    monkeypatch.setattr(sglang, "version", lambda name: "0.5.9")  # as strings, 0.5.9 would be the newer
    with pytest.raises(EngineError, match=r"SGLang 0\.5\.9 is too old: pip install 'sglang>=0\.5\.13'"):
        sglang.sglang_version()
    monkeypatch.setattr(sglang, "version", lambda name: "0.5.13")
    assert sglang.sglang_version() == "0.5.13"


@pytest.mark.gpu
def test_memory_comes_back_while_the_engine_sleeps(tmp_path):
    pytest.importorskip("sglang")
    from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
    from lightrft.tools.make_tiny import make_random_llama

    folder = str(make_random_llama(tmp_path / "model", hidden=128, heads=2))
    device = torch.device("cuda", 0)
    model = load_causal_lm(ModelOptions(folder, dtype=torch.bfloat16)).to(device)
    policy = SimpleNamespace(parameter_buckets=lambda max_bytes: iter([list(model.named_parameters())]))
    engine = sglang.SGLangEngine(
        EngineOptions(folder, torch.bfloat16, 64, memory_share=0.3),
        load_tokenizer(folder),
        {2},
        EngineGroup(),
        device,
    )
    try:
        engine.start(policy)
        awake = torch.cuda.mem_get_info(device)[0]
        engine.sleep()
        asleep, total = torch.cuda.mem_get_info(device)
        assert asleep - awake > 0.2 * total
        engine.sync_weights(policy)
        engine.wake()
        assert len(engine.generate([Prompt(0, [5, 6, 7], "")], SAMPLING)) == 2
    finally:
        engine.close()
