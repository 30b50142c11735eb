"""Flags that were given and do nothing."""

import pytest

from lightrft.config.flags import FLAGS
from lightrft.config.rules.effects import RULES

IDLE = [
    (
        {"critic_learning_rate": 1e-6},
        "--critic_learning_rate has no effect with --advantage_estimator group_norm (the default): it acts "
        "only with --advantage_estimator gae",
    ),
    (
        {"engine_mem_util": 0.8},
        "--engine_mem_util has no effect with --engine_type hf: it acts only with --engine_type vllm or "
        "sglang",
    ),
    ({"disable_engine_sleep": True}, "--disable_engine_sleep has no effect with --engine_type hf"),
    (
        {"kl_estimator": "k2", "init_kl_coef": 0},
        "--kl_estimator has no effect with --init_kl_coef 0.0: it acts only with --init_kl_coef",
    ),
    (
        {"kl_target": 0.005},
        "--kl_target has no effect with --kl_controller fixed (the default): it acts only with "
        "--kl_controller adaptive or --policy_loss cpgd",
    ),
    ({"reward": "math", "reward_pretrain": "org/rm"}, "--reward_pretrain has no effect with --reward math"),
    ({"fsdp": True, "zero_stage": 1}, "--zero_stage has no effect with --fsdp: it acts only without --fsdp"),
    ({"fsdp_cpu_offload": True}, "--fsdp_cpu_offload has no effect without --fsdp: it acts only with --fsdp"),
    ({"eval_steps": 10}, "--eval_steps has no effect without --eval_data: it acts only with --eval_data"),
    ({"ckpt_path": "/x"}, "--ckpt_path has no effect without --load_checkpoint"),
    ({"wandb_org": "us"}, "--wandb_org has no effect without --use_wandb"),
    ({"chunk_size": 512}, "--chunk_size has no effect without --fused_linear_logprob"),
    ({"lora_alpha": 8}, "--lora_alpha has no effect with --lora_rank 0: it acts only with --lora_rank"),
    ({"policy_loss": "sapo", "clip_range": 0.1}, "--clip_range has no effect with --policy_loss sapo"),
]


@pytest.mark.parametrize(("changes", "text"), IDLE, ids=[" ".join(c) for c, _ in IDLE])
def test_a_flag_without_effect_is_named_with_its_reason(found, changes, text):
    assert text in found(**changes)["flag_without_effect"]
    assert found(**changes)["flag_without_effect"].startswith("warning: ")


def test_only_flags_that_were_given_are_named(found):
    assert "flag_without_effect" not in found()
    assert found(critic_learning_rate=1e-6)["flag_without_effect"].count("has no effect") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_type": "vllm", "engine_mem_util": 0.8},
        {"kl_estimator": "k2"},
        {"policy_loss": "cpgd", "kl_target": 0.005},
        {"reward": ["format", "model:0.5"], "reward_pretrain": "org/rm"},
        {"zero_stage": 1},
        {"lora_rank": 8, "lora_alpha": 8},
    ],
)
def test_a_flag_that_acts_is_not_named(found, changes):
    assert "flag_without_effect" not in found(**changes)


def test_clipping_cannot_act_on_policy(found):
    text = found(clip_range=0.1, dual_clip=3)["clipping_without_effect"]
    assert text.startswith("warning: --clip_range, --dual_clip: no effect while every sample is trained once")
    assert "train_batch_size below 16 or max_epochs above 1" in text
    assert "clipping_without_effect" not in found(clip_range=0.1, train_batch_size=8)
    assert "clipping_without_effect" not in found(clip_range=0.1, max_epochs=2)
    assert "clipping_without_effect" not in found()


def test_several_greedy_samples_are_one(found, prompts):
    text = found(eval_data=prompts, eval_n_samples=4)["greedy_samples_are_equal"]
    assert "eval_n_samples (4) has no effect at eval_temperature 0" in text
    assert "greedy_samples_are_equal" not in found(
        eval_data=prompts, eval_n_samples=4, eval_temperature=["0", "1"]
    )


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {
        "flag_without_effect",
        "clipping_without_effect",
        "greedy_samples_are_equal",
    }
    assert sum(bool(flag.acts_when) for flag in FLAGS.values()) > 40
