"""Step arithmetic and the plan's text."""

import re

import pytest

from lightrft.config.steps import enough_prompts, plan_steps
from lightrft.errors import ConfigError
from tests.config.runs import h200


def test_the_numbers_of_the_reference(make):
    """7473 prompts, n 5, TBS 128, RBS 128: 58 rollouts; 640 samples each, so 5 updates; 58 x 5 = 290."""
    config = make(train_batch_size=128, rollout_batch_size=128, n_samples_per_prompt=5)
    steps = plan_steps(config, 7473)
    assert (steps.rollouts_per_episode, steps.optimizer_steps_per_episode) == (58, 290)
    assert (steps.steps_per_episode, steps.rollouts_per_step, steps.updates_per_step) == (58, 1, 5)
    assert steps.dropped_prompts == 7473 - 58 * 128 == 49


def test_several_rollouts_for_one_optimizer_step(make):
    """RBS x n = 16 samples, TBS 64: 4 rollouts of 4 prompts per step; 100 prompts: 6 steps, 4 left."""
    steps = plan_steps(make(train_batch_size=64), 100)
    assert (steps.rollouts_per_step, steps.updates_per_step) == (4, 1)
    assert (steps.steps_per_episode, steps.rollouts_per_episode, steps.dropped_prompts) == (6, 24, 4)


def test_epochs_repeat_the_updates_and_episodes_the_steps(make):
    config = make(train_batch_size=8, max_epochs=3, num_episodes=10)
    plan = config.plan(64)
    assert plan.steps.updates_per_step == 2 * 3
    assert plan.steps_per_episode == 16
    assert plan.optimizer_steps == 16 * 10 * 6
    assert plan.rollouts_per_step == 1


@pytest.mark.parametrize(
    ("changes", "accumulation"),
    [({}, 16), ({"micro_train_batch_size": 4}, 4), ({"gpus": 4}, 4), ({"gpus": 4, "sp_size": 2}, 8)],
)
def test_accumulation(make, changes, accumulation):
    changes = changes | ({"gpus": h200(changes["gpus"])} if "gpus" in changes else {})
    assert plan_steps(make(**changes), 64).accumulation_steps == accumulation


def test_too_few_prompts_are_refused_with_the_number_that_would_do(make):
    """10 prompts, n 2, TBS 64, RBS 8: 16 samples a rollout, 4 rollouts a step, so 32 prompts."""
    config = make(train_batch_size=64, rollout_batch_size=8, n_samples_per_prompt=2)
    with pytest.raises(ConfigError) as caught:
        config.plan(10)
    assert str(caught.value) == (
        "10 prompts x 2 samples are fewer than one step takes (32 prompts: train_batch_size 64, "
        "rollout_batch_size 8): give at least 32 prompts, or use train_batch_size 16"
    )
    assert config.check_prompts(10) == [str(caught.value)]
    assert config.check_prompts(32) == []
    smaller = make(train_batch_size=16, rollout_batch_size=8, n_samples_per_prompt=2)
    assert enough_prompts(smaller, 10) is None


@pytest.mark.parametrize(
    ("prompts", "advice"),
    [
        (6, "use rollout_batch_size 4 with train_batch_size 16"),  # the largest multiple of 4 ranks
        (3, "give at least 8 prompts"),  # nothing that 4 ranks could share
    ],
)
def test_smaller_batches_are_offered_where_they_divide(make, prompts, advice):
    config = make(gpus=h200(4), rollout_batch_size=8, train_batch_size=32)
    assert enough_prompts(config, prompts).endswith(advice)


def test_no_prompts_at_all(make):
    assert "give at least 4 prompts" in enough_prompts(make(), 0)


def test_counts_stay_unknown_without_a_number(make, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    plan = make(prompt_data=tmp_path / "a.parquet").plan()
    assert (plan.steps_per_episode, plan.optimizer_steps) == (None, None)
    text = " ".join(plan.render().split())
    assert "one episode depends on the number of prompts" in text
    assert "rows are counted when they are loaded" in text


def test_the_plan_counts_the_rows_of_a_file_by_itself(make):
    assert make().plan().steps.num_prompts == 64


def test_the_text_of_a_plan(make):
    changes = {"num_gpus": 8, "dry_run": True, "engine_type": "vllm", "engine_tp_size": 4, "num_episodes": 2}
    config = make(train_batch_size=128, rollout_batch_size=128, n_samples_per_prompt=5, **changes)
    text = config.plan(7473).render()
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    for line in (
        "LightRFT plan (dry run)",
        "model Qwen2.5-7B: qwen2, 7.62 B parameters, 28 layers, hidden 3584, vocabulary 152064",
        "hardware 8 x GPU (assumed), bfloat16, DeepSpeed ZeRO-2",
        "engine vllm: 2 groups of tensor-parallel size 4, bfloat16",
        "engine memory 0.5 of each GPU while it generates; asleep, it gives it to the trainer",
        "engine log-probs of a sample of prompts, for the gap sentinel",
        "weight sync in buckets of 512 MiB, compared at the first sync and every 100 steps",
        "algorithm group_norm, ppo loss, seq-mean-token-mean, KL k3 x 0.001 in the reward",
        "one rollout 128 prompts x 5 = 640 samples, at most 2,621,440 tokens",
        "one step 1 rollout, then 5 optimizer steps, off-policy after the first",
        "one optimizer step 128 samples = 8 ranks x 16 accumulated micro-batches of 1",
        "one episode 58 steps = 58 rollouts and 290 optimizer steps; 49 of 7473 prompts dropped",
        "the run 2 episodes = 116 steps, 580 optimizer steps",
        "memory per GPU, estimated in GiB generate experience update",
    ):
        assert line in lines
    assert "train_batch_size=128*" in text
    assert "generate_max_len=2048~" in text
    assert "max_len=4096 " in text
    # A path is one word: only a line with one may be longer.
    assert all(len(line) <= 110 or "/" in line for line in text.splitlines())


def test_a_plan_shows_what_acts_and_hides_what_does_not(make):
    text = make().plan().render()
    assert "lora_alpha" not in text
    assert "engine_mem_util" not in text
    assert "critic_learning_rate=1e-06*" in make(critic_learning_rate=1e-6).plan().render()
    assert "bf16=off*" in make(no_bf16=True).plan().render()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "engine hf: every rank generates with the policy module"),
        ({"engine_type": "vllm"}, "engine memory no sleep: the engine keeps its memory on a CPU"),
        ({"engine_type": "vllm"}, "engine vllm: 1 group of tensor-parallel size 1, float32"),
        (
            {"engine_type": "sglang", "gpus": h200(1), "disable_engine_sleep": True},
            "engine memory 0.5 of each GPU, kept while the trainer trains (--disable_engine_sleep)",
        ),
        (
            {"engine_type": "vllm", "rollout_is": "token"},
            "engine log-probs of all responses, for --rollout_is token",
        ),
        (
            {"engine_type": "vllm", "rollout_logprobs": "all"},
            "engine log-probs of all responses, for the gap sentinel",
        ),
        (
            {"engine_type": "vllm", "rollout_logprobs": "none"},
            "engine log-probs none: the gap between engine and trainer is not watched",
        ),
        (
            {"engine_type": "vllm", "sync_bucket_mb": 64, "check_weight_sync": 0},
            "weight sync in buckets of 64 MiB, never compared",
        ),
    ],
)
def test_a_plan_says_what_the_engine_does(make, changes, line):
    text = make(**changes).plan().render()
    assert line in [re.sub(r"\s+", " ", shown).strip() for shown in text.splitlines()]


def test_a_plan_on_the_cpu_speaks_of_processes(make):
    text = make().plan().render()
    assert "1 x CPU, float32, DeepSpeed ZeRO-2" in text
    assert "memory per process" in text


def test_notes_of_a_plan(make):
    assumed = make(dry_run=True, engine_type="vllm", engine_tp_size=2).plan()
    assert "note: 2 assumed for the plan" in assumed.render()
    assert make().plan().notes == ()


def test_old_gpus_are_told_what_they_can_run(make):
    from lightrft.config.gpus import Gpu

    old = (Gpu(0, "Tesla P40", 24 << 30, (6, 1)),)
    (note,) = make(gpus=old, engine_type="vllm").plan().notes
    assert "--engine_dtype float32 --attn_implementation eager --no_engine_chunked_prefill" in note
    (note,) = make(gpus=old).plan().notes
    assert "--engine_dtype" not in note
