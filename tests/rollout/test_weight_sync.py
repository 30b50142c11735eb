"""Buckets, names, dtypes, and the comparison when it is due."""

import pytest
import torch
from torch import nn

from lightrft.distributed.local import LocalModel
from lightrft.distributed.strategy import OptimizerOptions, in_buckets
from lightrft.errors import EngineError
from lightrft.rollout.checksum import hash_all
from lightrft.rollout.weight_sync import Held, WeightSync


class Model(nn.Module):
    """Two parameters of 40 bytes, one of 4000, named as a policy's are."""

    def __init__(self):
        super().__init__()
        self.model = nn.ParameterDict(
            {
                "a": nn.Parameter(torch.randn(10)),
                "b": nn.Parameter(torch.randn(10)),
                "c": torch.randn(10, 100),
            }
        )


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return LocalModel(Model(), OptimizerOptions())


class Engine:
    """Keeps what it is given."""

    def __init__(self, fault=0.0):
        self.weights, self.buckets, self.fault = {}, [], fault

    def load(self, bucket):
        self.buckets.append([name for name, _ in bucket])
        self.weights |= {name: tensor.clone() + self.fault for name, tensor in bucket}

    def held(self):
        return Held([hash_all(self.weights.items())], {})


def sync(check_every=1, bucket_bytes=100, dtype=torch.float32):
    return WeightSync(dtype, bucket_bytes, check_every, "engine 1.0")


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, [["a"], ["b"], ["c"]]), (80, [["a", "b"], ["c"]]), (9999, [["a", "b", "c"]])]
)
def test_buckets_hold_what_fits_and_a_large_parameter_alone(limit, expected):
    parameters = [("a", torch.zeros(10)), ("b", torch.zeros(10)), ("c", torch.zeros(1000))]
    assert [[name for name, _ in bucket] for bucket in in_buckets(parameters, limit)] == expected


def test_each_parameter_arrives_once_under_the_engines_name(policy):
    engine = Engine()
    sync().run(policy, engine.load, engine.held)
    assert engine.buckets == [["a", "b"], ["c"]]
    for name, parameter in policy.module.model.items():
        assert torch.equal(engine.weights[name], parameter)


def test_the_engines_dtype_travels(policy):
    engine = Engine()
    sync(dtype=torch.bfloat16).run(policy, engine.load, engine.held)
    assert torch.equal(engine.weights["c"], policy.module.model["c"].bfloat16())


def test_the_same_dtype_is_not_copied(policy):
    seen = []
    sync().run(policy, seen.extend, None)
    assert {t.data_ptr() for _, t in seen} == {p.data_ptr() for p in policy.module.model.values()}


def test_what_arrives_otherwise_ends_the_run_and_is_named(policy):
    engine = Engine(fault=1.0)
    with pytest.raises(
        EngineError, match=r"sync 1 the engine \(engine 1.0\) does not hold what was sent: a, b, c"
    ):
        sync().run(policy, engine.load, engine.held)


@pytest.mark.parametrize(("check_every", "expected"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [1, 3, 5])])
def test_comparisons_come_at_the_first_sync_and_every_so_many(policy, check_every, expected):
    engine, asked, due = Engine(), [], sync(check_every)

    def held():
        asked.append(due.count)
        return engine.held()

    for _ in range(5):
        due.run(policy, engine.load, held)
    assert asked == expected
