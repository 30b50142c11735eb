"""DeepSpeed on real gloo ranks against one plain PyTorch process."""

import pytest

from tests.cuts import LIMIT, largest_differences
from tests.ranks import WORLDS, launch, run_worker

pytestmark = pytest.mark.slow
needs_two = pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
BASE = {"backend": "deepspeed", "stage": 2, "bf16": False, "offload": False, "resume": False, "micro": 2}
RESUMED = [{"bf16": True}, {"stage": 1}, {"bf16": True, "stage": 1}, {"offload": True}]
CASES = [
    *({"stage": stage} for stage in (1, 2)),
    *({**case, "resume": resume} for case in RESUMED for resume in (False, True)),
    {"backend": "local"},
]


def key(world, case):
    return (world, *sorted((BASE | case).items()))


@pytest.fixture(scope="module")
def results(tiny_model, tmp_path_factory):
    """Every case on 1 and 2 ranks: one launch per world size, since starting costs more than training."""
    out = tmp_path_factory.mktemp("zero") / "out.json"
    found = {}
    for world in WORLDS:
        cases = [c for c in CASES if world == 1 or c.get("backend") != "local"]
        filled = [BASE | c | {"model": str(tiny_model)} for c in cases]
        records = run_worker("zero", world, out, cases=filled)
        found |= {key(world, c): r for c, r in zip(cases, records, strict=True)}
    return lambda world=1, **case: found[key(world, case)]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("world", WORLDS)
def test_zero_equals_plain_pytorch(results, stage, world):
    plain, got = results(backend="local"), results(world, stage=stage)
    assert got["losses"] == pytest.approx(plain["losses"], abs=1e-5)
    assert got["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    assert got["weights"] == pytest.approx(plain["weights"], rel=1e-4)


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.parametrize("world", WORLDS)
def test_resumed_equals_uninterrupted_to_the_bit(results, world, case):
    whole, resumed = results(world, **case), results(world, **case, resume=True)
    assert resumed["digest"] == whole["digest"]
    assert resumed["losses"] == whole["losses"]


def test_bf16_follows_fp32(results):
    """Two steps at a large learning rate: bfloat16's 8 bits leave the losses within a few percent."""
    assert results(bf16=True)["losses"] == pytest.approx(results()["losses"], rel=0.05)


@needs_two
def test_one_ranks_failure_ends_all_with_its_message(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "from datetime import timedelta\n"
        "from lightrft.distributed.collectives import barrier, rank\n"
        "from lightrft.distributed.deepspeed import init_distributed\n"
        "from lightrft.distributed.failure import shared_failure\n"
        "from lightrft.errors import DataError\n"
        "init_distributed(timedelta(seconds=600))\n"
        "with shared_failure(rank(), 2):\n"
        "    if rank() == 1:\n"
        "        raise DataError('row 7 is on fire')\n"
        "    barrier()\n"
    )
    done = launch(2, [str(script)], timeout=60)
    assert done.returncode != 0
    assert "rank 0 stops, since rank 1 failed: DataError: row 7 is on fire" in done.stderr


@needs_two
def test_ranks_with_different_metrics_still_agree(tmp_path):
    """One rank's reward gave a part that the other's did not: nothing is added to the wrong name."""
    script = tmp_path / "metrics.py"
    script.write_text(
        "from datetime import timedelta\n"
        "from lightrft.distributed.collectives import rank\n"
        "from lightrft.distributed.deepspeed import init_distributed\n"
        "from lightrft.trainer.metrics import MetricSums\n"
        "init_distributed(timedelta(seconds=60))\n"
        "m = MetricSums()\n"
        "m.add('b', 1.0 + rank())\n"
        "m.add_max('z', float(rank()))\n"
        "if rank() == 1:\n"
        "    m.add('a', 10.0)\n"
        "print('GOT', sorted(m.reduce().items()), flush=True)\n"
        "import torch\n"
        "torch.distributed.barrier()\n"
        "torch.distributed.destroy_process_group()\n"
    )
    done = launch(2, [str(script)], timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("GOT [('a', 10.0), ('b', 1.5), ('z', 1.0)]") == 2


def test_no_cut_of_a_batch_shows_in_its_gradient(tiny_model, tmp_path):
    worst = largest_differences(tiny_model, tmp_path)
    assert len(worst) == 6 * 4  # losses x averaging
    assert max(worst.values()) <= LIMIT
