"""Reward models under ZeRO on real ranks, and what waits in the host's memory."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightrft.distributed.parking import ParkedModule
from tests.ranks import WORLDS, run_worker
from tests.reward_models import make_reward_model, scores_by_hand

TEXTS = [[5, 6, 7, 8], [9], [10, 0, 11], [12, 13, 0], [6, 6], [7, 8, 9, 10, 11], [13, 5]]
SPLITS = {"uneven": [TEXTS[:5], TEXTS[5:]], "one rank has none": [TEXTS, []], "no texts": [[], []]}


@pytest.mark.slow
@pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
def test_two_ranks_with_uneven_texts_score_as_one_and_lose_no_weight(tiny_model, tmp_path):
    folder = make_reward_model(tiny_model, tmp_path / "rm")
    headless = make_reward_model(tiny_model, tmp_path / "headless")
    kept = {k: v for k, v in load_file(folder / "model.safetensors").items() if k != "score.weight"}
    save_file(kept, headless / "model.safetensors", metadata={"format": "pt"})
    base = {"model": str(folder), "micro": 2, "bf16": False}
    cases = [base | {"stage": stage, "texts": texts} for stage in (2, 3) for texts in SPLITS.values()]
    cases += [base | {"stage": 3, "bf16": True, "texts": SPLITS["uneven"]}]
    cases += [base | {"stage": 3, "model": str(headless), "texts": SPLITS["uneven"]}]
    *scored, bf16, refused = run_worker("reward_model", 2, tmp_path / "out.json", cases=cases)
    expected = scores_by_hand(folder, TEXTS)
    for case, record in zip(cases, scored, strict=False):
        for run in record["runs"]:
            assert [len(own) for own in run] == [len(texts) for texts in case["texts"]]
            got = [score for own in run for score in own]
            wanted = expected[: len(got)]
            torch.testing.assert_close(torch.tensor(got), wanted, rtol=1e-5, atol=1e-5)
    for run in bf16["runs"]:
        got = torch.tensor([score for own in run for score in own])
        assert (got - expected).abs().max() < 0.25  # of scores that differ by 20
    whole = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    held = [record["held"] for record in scored]
    assert held == [whole if case["stage"] == 2 else 0 for case in cases[: len(scored)]]
    assert "lacks 1 weights of the model: score.weight" in refused["refused"]


class Recorded(torch.nn.Linear):
    """Says where its weight is when it computes."""

    def forward(self, hidden):
        self.seen = self.weight.device.type
        return super().forward(hidden)


def test_a_parked_module_is_frozen_and_in_evaluation():
    parked = ParkedModule(Recorded(4, 4).train(), torch.device("cpu"))
    with parked() as module:
        module(torch.zeros(1, 4))
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())


@pytest.mark.gpu
def test_a_parked_module_takes_the_gpu_only_while_it_computes():
    size = 4096
    weights = torch.randn(size, size)
    module = Recorded(size, size, bias=False)
    module.weight.data.copy_(weights)
    module.register_buffer("shift", torch.ones(3))
    parked = ParkedModule(module, torch.device("cuda"))
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        with parked() as inside:
            out = inside(torch.eye(size, device="cuda")[:2])
            assert torch.cuda.memory_allocated() - before >= weights.nbytes
            assert inside.shift.is_cuda
        torch.testing.assert_close(out.cpu(), weights.T[:2], rtol=0, atol=1e-2)
        del out
        assert torch.cuda.memory_allocated() - before < weights.nbytes / 100
        assert module.seen == "cuda"
        assert module.weight.device.type == module.shift.device.type == "cpu"
        assert module.weight.is_pinned()
    assert torch.equal(module.weight, weights)


@pytest.mark.gpu
def test_a_failure_while_it_computes_leaves_nothing_on_the_gpu():
    parked = ParkedModule(Recorded(64, 64), torch.device("cuda"))
    with pytest.raises(RuntimeError), parked() as module:
        module(torch.zeros(1, 63, device="cuda"))
    assert module.weight.device.type == "cpu"
