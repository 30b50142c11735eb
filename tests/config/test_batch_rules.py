"""Batch arithmetic: the user's numbers, the rule, the nearest valid values."""

import pytest

from lightrft.config.rules.batch import RULES
from tests.config.runs import h200


def test_the_base_run_breaks_no_rule(found):
    assert found() == {}


RUNS = [
    (
        "rollout_batch_divides",
        {"gpus": h200(4), "rollout_batch_size": 10, "train_batch_size": 40},
        "error: rollout_batch_size (10) must be divisible by the number of GPUs (4): use 8 or 12",
    ),
    (
        "rollout_batch_divides",
        {"gpus": h200(4), "rollout_batch_size": 3, "train_batch_size": 12},
        "must be divisible by the number of GPUs (4): use 4",
    ),
    (
        "train_batch_divides",
        {"gpus": h200(4), "micro_train_batch_size": 4, "train_batch_size": 8, "rollout_batch_size": 8},
        "error: train_batch_size (8) must be divisible by micro_train_batch_size (4) x GPUs (4) = 16: "
        "use micro_train_batch_size 1 or 2, or train_batch_size 16",
    ),
    (
        "train_batch_divides",
        {"gpus": h200(4), "train_batch_size": 2, "rollout_batch_size": 4, "n_samples_per_prompt": 2},
        "= 4: use train_batch_size 4",
    ),
    (
        "train_batch_divides",
        {"gpus": h200(4), "sp_size": 2, "micro_train_batch_size": 3},
        "must be divisible by micro_train_batch_size (3) x 4 GPUs / sp_size 2 (2) = 6: "
        "use micro_train_batch_size 1 or 2, or train_batch_size 48",
    ),
    (
        "train_and_rollout_divide",
        {"train_batch_size": 12},
        "error: train_batch_size (12 samples) and one rollout (4 prompts x 4 samples = 16) must divide one "
        "another: use train_batch_size 8 or 16",
    ),
    (
        "train_and_rollout_divide",
        {"train_batch_size": 40},
        "must divide one another: use train_batch_size 32 or 48",
    ),
    (
        "enough_prompts_for_a_step",
        {"train_batch_size": 512},
        "error: 64 prompts x 4 samples are fewer than one step takes (128 prompts: train_batch_size 512, "
        "rollout_batch_size 4): give at least 128 prompts, or use train_batch_size 16",
    ),
    (
        "enough_prompts_for_a_step",
        {"rollout_batch_size": 100, "train_batch_size": 400},
        "give at least 100 prompts, or use rollout_batch_size 64 with train_batch_size 256",
    ),
    (
        "tensor_parallel_divides",
        {"gpus": h200(4), "engine_type": "vllm", "engine_tp_size": 3},
        "error: engine_tp_size (3) must divide the number of GPUs (4): use 2 or 4",
    ),
    (
        "tensor_parallel_divides",
        {"gpus": h200(2), "engine_type": "vllm", "engine_tp_size": 4},
        "engine_tp_size (4) must divide the number of GPUs (2): use 2",
    ),
    (
        "sequence_parallel_divides",
        {"gpus": h200(4), "sp_size": 3},
        "error: sp_size (3) must divide the number of GPUs (4): use 2 or 4",
    ),
    (
        "batch_rule",
        {"train_batch_size": 4},
        "warning: train_batch_size >= rollout_batch_size x n_samples_per_prompt does not hold: 4 < 4 x 4 = "
        "16. Each rollout is trained in 4 optimizer steps (per epoch); those after the first are off-policy",
    ),
]


@pytest.mark.parametrize(
    ("rule", "changes", "text"), RUNS, ids=[f"{i}-{r}" for i, (r, _, _) in enumerate(RUNS)]
)
def test_a_broken_rule_says_what_would_do(found, rule, changes, text):
    assert text in found(**changes)[rule]


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {rule for rule, _, _ in RUNS}


def test_suggestions_are_themselves_valid(found):
    """Each value that a message proposes breaks no arithmetic rule when it is used."""
    ranks = {"gpus": h200(4)}
    assert "rollout_batch_divides" not in found(**ranks, rollout_batch_size=8, train_batch_size=32)
    for micro in (1, 2):
        changes = {"micro_train_batch_size": micro, "train_batch_size": 8, "rollout_batch_size": 8}
        assert "train_batch_divides" not in found(**ranks, **changes)
    for size in (8, 16, 32, 48):
        assert set(found(train_batch_size=size)) <= {"batch_rule"}
    smaller = found(rollout_batch_size=64, train_batch_size=256)
    assert smaller == {}


def test_tensor_parallelism_means_nothing_to_the_hf_engine(found):
    result = found(gpus=h200(4), engine_tp_size=3)
    assert "tensor_parallel_divides" not in result
    assert "--engine_tp_size has no effect with --engine_type hf" in result["flag_without_effect"]


def test_prompts_that_cannot_be_counted_are_not_judged(found, tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    assert found(prompt_data=tmp_path / "data.parquet", train_batch_size=512) == {}


def test_on_policy_and_several_rollouts_per_step_need_no_warning(found):
    assert found(train_batch_size=16) == {}
    assert found(train_batch_size=64) == {}
