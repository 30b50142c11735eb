"""DeepSpeed on real gloo ranks against one plain PyTorch process."""

import math

import pytest
import torch

from lightrft.distributed.deepspeed import DeepSpeedOptions, DeepSpeedStrategy
from lightrft.models.critic import load_critic, save_critic
from lightrft.models.loading import ModelOptions, load_tokenizer
from lightrft.tools.make_tiny import make_random_llama
from tests.cuts import LIMIT, largest_differences
from tests.ranks import WORLDS, launch, run_worker

pytestmark = pytest.mark.slow
needs_two = pytest.mark.skipif(2 not in WORLDS, reason="needs a GPU for each of two ranks")
STAGES = (1, 2, 3)
BASE = {
    "kind": "train",
    "backend": "deepspeed",
    "stage": 2,
    "bf16": False,
    "offload": False,
    "micro": 2,
    "persistent": 0,
    "resume": False,
    "used_before_load": False,
    "nan_at": None,
    "max_bytes": 0,
    "model": "tied",
}
RESUMED = [
    {"bf16": True},
    {"stage": 1},
    {"bf16": True, "stage": 1},
    {"offload": True},
    {"stage": 3},
    {"stage": 3, "bf16": True},
    {"stage": 3, "bf16": True, "persistent": 100},  # norms stay whole, matrices are sharded
    {"stage": 3, "bf16": True, "offload": True},
]
BAD_GRADIENTS = [
    {"kind": "nan_gradient"} | c
    for c in ({}, {"stage": 3}, {"stage": 3, "bf16": True}, {"stage": 3, "offload": True})
]
BUCKET = 20_000
BUCKETS = [{"kind": "buckets", "stage": 3, "max_bytes": BUCKET, "persistent": n} for n in (0, 100)]
FROZEN = [
    {"kind": "frozen", "stage": 3, "model": model, "persistent": n}
    for model in ("tied", "untied")
    for n in (0, 100)
]
CRITICS = [{"kind": "critic", "stage": 3, "model": model} for model in ("tied", "saved_critic")]
PLAIN = [
    {},
    {"model": "untied"},
    {"nan_at": 1},
    {"kind": "buckets", "max_bytes": BUCKET},
    *({"kind": "frozen", "model": model} for model in ("tied", "untied")),
    *({"kind": "critic", "model": model} for model in ("tied", "saved_critic")),
]
CASES = [
    *({"stage": stage} for stage in STAGES),
    *({"stage": stage, "nan_at": 1} for stage in STAGES),
    {"stage": 3, "model": "untied"},
    *({**c, "resume": r, "used_before_load": r} for c in RESUMED for r in (False, True)),
    *BAD_GRADIENTS,
    *BUCKETS,
    *FROZEN,
    *CRITICS,
    *({"kind": kind, "stage": stage, "bf16": True} for kind in ("buckets", "frozen") for stage in STAGES),
]


def key(world, case):
    return (world, *sorted((BASE | case).items()))


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """A tied model, an untied one, and a critic whose value head says something."""
    folder = tmp_path_factory.mktemp("models")
    untied = make_random_llama(folder / "untied", tie=False)
    critic = load_critic(ModelOptions(str(untied)))
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(3))
    torch.nn.init.constant_(critic.value_head.bias, 0.25)
    state = dict(critic.named_parameters())
    save_critic(folder / "critic", state, critic, load_tokenizer(str(untied)))
    return {"tied": tiny_model, "untied": untied, "saved_critic": folder / "critic"}


@pytest.fixture(scope="module")
def results(models, tmp_path_factory):
    """Every case on 1 and 2 ranks: one launch per world size, since starting costs more than training."""
    out = tmp_path_factory.mktemp("zero") / "out.json"
    found = {}
    for world in WORLDS:
        cases = [BASE | c for c in CASES]
        cases += [BASE | {"backend": "local"} | c for c in PLAIN if world == 1]
        unique = list({key(world, c): c for c in cases}.values())
        filled = [c | {"model": str(models[c["model"]])} for c in unique]
        records = run_worker("zero", world, out, cases=filled)
        found |= {key(world, c): r for c, r in zip(unique, records, strict=True)}
    return lambda world=1, **case: found[key(world, case)]


def assert_same_training(got, plain):
    assert got["losses"] == pytest.approx(plain["losses"], abs=1e-5)
    assert got["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    assert list(got["weights"]) == list(plain["weights"])
    assert got["weights"] == pytest.approx(plain["weights"], rel=1e-4)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", WORLDS)
def test_zero_equals_plain_pytorch(results, stage, world):
    assert_same_training(results(world, stage=stage), results(backend="local"))


@pytest.mark.parametrize("world", WORLDS)
def test_a_head_of_its_own_is_trained_too(results, world):
    got = results(world, stage=3, model="untied")
    assert "model.lm_head.weight" in got["weights"]
    assert_same_training(got, results(backend="local", model="untied"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", WORLDS)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(results, stage, world):
    """The first and the third step are those of a run without the second."""
    got, plain = results(world, stage=stage, nan_at=1), results(backend="local", nan_at=1)
    assert got["losses"][1] is None
    assert got["norms"][1] is None
    assert got["losses"][0::2] == pytest.approx(plain["losses"][0::2], abs=1e-5)
    assert got["norms"][0::2] == pytest.approx(plain["norms"][0::2], rel=1e-4)
    assert got["weights"] == pytest.approx(plain["weights"], rel=1e-4)
    assert got["losses"][2] == pytest.approx(results(backend="local")["losses"][1], abs=1e-5)


@pytest.mark.parametrize("case", BAD_GRADIENTS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_finite_loss_with_a_bad_gradient_changes_nothing(results, world, case):
    got = results(world, **case)
    assert got["skipped"] == [True, False]
    assert got["norms"][0] == math.inf
    assert 0 < got["norms"][1] < 100
    assert got["unchanged"]
    assert got["moved"]


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.parametrize("world", WORLDS)
def test_resumed_equals_uninterrupted_to_the_bit(results, world, case):
    whole, resumed = results(world, **case), results(world, **case, resume=True, used_before_load=True)
    assert resumed["digest"] == whole["digest"]
    assert resumed["losses"] == whole["losses"]


@pytest.mark.parametrize("stage", [2, 3])
def test_bf16_follows_fp32(results, stage):
    """Steps at a large learning rate: bfloat16's 8 bits leave the losses near those of float32."""
    assert results(stage=stage, bf16=True)["losses"] == pytest.approx(results()["losses"], abs=0.01)


@pytest.mark.parametrize("case", BUCKETS)
@pytest.mark.parametrize("world", WORLDS)
def test_buckets_hold_every_parameter_once_and_whole(results, world, case):
    got, plain = results(world, **case), results(backend="local", kind="buckets", max_bytes=BUCKET)
    assert got["buckets"] == plain["buckets"]
    assert list(got["weights"]) == [name for bucket in got["buckets"] for name, _, _ in bucket]
    assert got["weights"] == plain["weights"]
    sizes = [[size for _, _, size in bucket] for bucket in got["buckets"]]
    assert all(sum(bucket) <= BUCKET or len(bucket) == 1 for bucket in sizes)
    assert len(sizes) < sum(map(len, sizes))  # some hold several


@pytest.mark.parametrize("world", WORLDS)
def test_one_bucket_at_a_time_is_whole_and_none_after_a_stop(results, world):
    got = results(world, **BUCKETS[0])
    assert got["whole"] == [sum(size for _, _, size in bucket) for bucket in got["buckets"]]
    assert got["after"] == 0
    assert got["stopped"] == 0


@pytest.mark.parametrize("case", FROZEN)
@pytest.mark.parametrize("world", WORLDS)
def test_a_frozen_model_is_sharded_and_answers_as_the_plain_one(results, world, case):
    got, plain = results(world, **case), results(backend="local", kind="frozen", model=case["model"])
    for row, expected in zip(got["logprobs"], plain["logprobs"], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    assert max(map(min, plain["logprobs"])) < -0.1
    assert got["steady"]
    assert not got["training"]
    norms = 5 * 64  # of two layers and the end
    assert got["held"] == (norms if case["persistent"] else 0)
    assert plain["held"] > 100 * norms


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["buckets", "frozen"])
def test_rotary_frequencies_stay_in_float32(results, kind, stage):
    """Both libraries like to cast them with the rest; bfloat16 turns position 1000 by radians."""
    got, plain = results(kind=kind, stage=stage, bf16=True), results(backend="local", kind="frozen")
    assert got["buffers"]["model.model.rotary_emb.inv_freq"][1] == pytest.approx(10000 ** (-1 / 16), rel=1e-6)
    assert got["buffers"] == plain["buffers"]


@pytest.mark.parametrize("case", CRITICS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_sharded_critic_learns_as_the_plain_one(results, world, case):
    got, plain = results(world, **case), results(backend="local", kind="critic", model=case["model"])
    values, expected = torch.tensor(got["values"]), torch.tensor(plain["values"])
    assert bool((expected[0] == 0).all()) == (case["model"] == "tied")  # a fresh head says nothing
    assert (expected[1] - expected[0]).abs().max() > 1e-3
    torch.testing.assert_close(values, expected, atol=2e-5, rtol=1e-4)
    assert got["weights"] == pytest.approx(plain["weights"], rel=1e-4)


def test_transformers_knows_of_shards_only_while_a_model_loads():
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    def load(stage):
        with DeepSpeedStrategy(torch.device("cpu"), DeepSpeedOptions(zero_stage=stage)).loading():
            assert is_deepspeed_zero3_enabled() == (stage == 3)
            raise OSError("no such model")

    for stage in STAGES:
        with pytest.raises(OSError, match="no such model"):
            load(stage)
        assert not is_deepspeed_zero3_enabled()


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
    done = launch(2, [str(script)], timeout=500)
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
        "print(f'GOT {sorted(m.reduce().items())}\\n', end='', flush=True)\n"  # one write: ranks interleave
        "import torch\n"
        "torch.distributed.barrier()\n"
        "torch.distributed.destroy_process_group()\n"
    )
    done = launch(2, [str(script)], timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("GOT [('a', 10.0), ('b', 1.5), ('z', 1.0)]") == 2


def test_no_cut_of_a_batch_shows_in_its_gradient(tiny_model, tmp_path):
    worst = largest_differences(tiny_model, tmp_path)
    assert len(worst) == 6 * 4  # losses x averaging
    assert max(worst.values()) <= LIMIT
