"""Rules of the algorithm, each with its wording."""

import pytest

from lightrft.config.rules.algorithm import RULES

OFF_POLICY = {"train_batch_size": 8}
RUNS = [
    (
        "groups_need_samples",
        {"n_samples_per_prompt": 1, "train_batch_size": 4},
        "error: n_samples_per_prompt (1): advantage_estimator group_norm compares the samples of a prompt "
        "with each other: use 2 or more",
    ),
    (
        "groups_need_samples",
        {"n_samples_per_prompt": 1, "train_batch_size": 4, "advantage_estimator": "rloo"},
        "advantage_estimator rloo compares",
    ),
    (
        "groups_need_samples",
        {
            "n_samples_per_prompt": 1,
            "train_batch_size": 4,
            "advantage_estimator": "gae",
            "dynamic_sampling": True,
        },
        "dynamic_sampling keeps the prompts whose samples differ in reward: use 2 or more",
    ),
    (
        "lengths_fit",
        {"max_len": 2048},
        "error: prompt_max_len (2048) must be below max_len (2048), which holds prompt and response: "
        "use --max_len 3072 or --prompt_max_len 1024",
    ),
    (
        "input_template_has_a_place",
        {"input_template": "Question:"},
        "error: input_template ('Question:') must contain {}, where the prompt goes",
    ),
    (
        "overlong_buffer_fits",
        {"overlong_buffer": True},
        "error: overlong_buffer_len (0) must be above 0 and below generate_max_len (2048) with "
        "--overlong_buffer: use 512",
    ),
    (
        "overlong_buffer_fits",
        {"overlong_buffer": True, "overlong_buffer_len": 2048},
        "overlong_buffer_len (2048) must be above 0 and below",
    ),
    (
        "whole_prompts_fit_the_engine",
        {"engine_type": "vllm", "no_engine_chunked_prefill": True, "engine_max_num_batched_tokens": 512},
        "error: engine_max_num_batched_tokens (512) must be at least max_len (4096) with "
        "--no_engine_chunked_prefill, or the longest sequence never fits a step: use 4096",
    ),
    (
        "responses_reach_their_length",
        {"generate_max_len": 3000},
        "warning: prompt_max_len (2048) + generate_max_len (3000) = 5048 is over max_len (4096): prompts "
        "over 1096 tokens get shorter responses. Use --max_len 5048",
    ),
    (
        "responses_reach_their_length",
        {"generate_max_len": 4096},
        "all prompts get shorter responses",
    ),
    (
        "actor_slower_than_critic",
        {"advantage_estimator": "gae", "actor_learning_rate": 1e-5},
        "warning: actor_learning_rate (1e-05) should be below critic_learning_rate (9e-06): the policy "
        "follows values that have not settled. Use --critic_learning_rate 0.0001",
    ),
    (
        "kl_target_is_small",
        {"kl_controller": "adaptive", "kl_target": 0.5},
        "warning: kl_target (0.5) lies outside 0.001-0.01, where training is known to be stable: the "
        "nearest is 0.01",
    ),
    ("kl_target_is_small", {"policy_loss": "cpgd", "kl_target": 1e-4}, "the nearest is 0.001"),
    (
        "k1_is_no_loss",
        {"use_kl_loss": True, "kl_estimator": "k1"},
        "warning: kl_estimator k1 as a loss (--use_kl_loss): the expectation of its gradient is zero",
    ),
    (
        "kl_counts_once",
        {"advantage_estimator": "reinforce++", "use_kl_loss": True},
        "so that init_kl_coef 0.001 acts twice: leave --use_kl_loss out",
    ),
    (
        "whole_distribution",
        {"top_p": None},
        "warning: top_p 0.9: responses are drawn from a cut distribution",
    ),
    ("whole_distribution", {"top_k": 50}, "warning: top_k 50: responses"),
    ("whole_distribution", {"top_p": 0.5, "top_k": 50}, "warning: top_p 0.5 and top_k 50: responses"),
    (
        "distillation_has_a_teacher",
        {"advantage_estimator": "on_policy_distillation", "use_kl_loss": True},
        "error: advantage_estimator on_policy_distillation needs a teacher: give --teacher_pretrain or "
        "--teacher_model_url",
    ),
    (
        "distillation_has_a_teacher",
        {
            "advantage_estimator": "on_policy_distillation",
            "use_kl_loss": True,
            "teacher_model_url": "http://localhost:1",
            "temperature": 0.7,
        },
        "temperature (0.7): a teacher at --teacher_model_url scores at 1: use --temperature 1.0",
    ),
    (
        "kl_can_act",
        {"kl_controller": "adaptive", "init_kl_coef": 0},
        "error: kl_controller adaptive multiplies init_kl_coef, and 0 stays 0",
    ),
    (
        "kl_can_act",
        {"advantage_estimator": "cpgd", "init_kl_coef": 0.01},
        "error: init_kl_coef (0.01) cannot act: advantage_estimator cpgd takes no penalty in the reward: add "
        "--use_kl_loss, or use --init_kl_coef 0",
    ),
    (
        "gamma_discounts",
        {"advantage_estimator": "cpgd", "use_kl_loss": True, "gamma": 0.9},
        "warning: gamma (0.9) has no effect: advantage_estimator cpgd",
    ),
    (
        "correction_leaves_tokens",
        {"rollout_is": "mask", "rollout_is_cap": 1.0},
        "error: rollout_is_cap (1) with --rollout_is mask keeps ratios within [1 / cap, cap], and nothing is "
        "within it: use 2",
    ),
    (
        "gspo_clips_close_to_one",
        {"policy_loss": "gspo"},
        "its paper uses --clip_range 3e-4 --clip_range_higher 4e-4",
    ),
    ("kl_has_no_effect", {"advantage_estimator": "cpgd"}, "warning: init_kl_coef (0.001) cannot act"),
]


@pytest.mark.parametrize(
    ("rule", "changes", "text"), RUNS, ids=[f"{i}-{r}" for i, (r, _, _) in enumerate(RUNS)]
)
def test_a_broken_rule_says_what_would_do(found, rule, changes, text):
    assert text in found(**changes)[rule]


def test_every_rule_is_tested_here():
    assert {rule.name for rule in RULES} == {rule for rule, _, _ in RUNS}


HOLDING = [
    (
        "groups_need_samples",
        {"n_samples_per_prompt": 1, "train_batch_size": 4, "advantage_estimator": "reinforce"},
    ),
    ("lengths_fit", {"max_len": 2049}),
    ("input_template_has_a_place", {"input_template": "Question: {} Answer:"}),
    ("overlong_buffer_fits", {"overlong_buffer": True, "overlong_buffer_len": 512}),
    ("whole_prompts_fit_the_engine", {"engine_type": "vllm", "engine_max_num_batched_tokens": 512}),
    ("responses_reach_their_length", {"generate_max_len": 2048}),
    ("actor_slower_than_critic", {"actor_learning_rate": 1e-5}),  # no critic
    ("kl_target_is_small", {"kl_target": 0.5}),  # unused by the fixed controller
    ("k1_is_no_loss", {"kl_estimator": "k1"}),
    ("k1_is_no_loss", {"kl_estimator": "k1", "use_kl_loss": True, "init_kl_coef": 0}),
    ("kl_counts_once", {"advantage_estimator": "reinforce++"}),
    ("kl_can_act", {"advantage_estimator": "cpgd", "init_kl_coef": 0.01, "use_kl_loss": True}),
    ("gamma_discounts", {"gamma": 0.9}),
    ("correction_leaves_tokens", {"rollout_is": "token", "rollout_is_cap": 1.0}),
    ("gspo_clips_close_to_one", {"policy_loss": "gspo", "clip_range": 3e-4, "clip_range_higher": 4e-4}),
    ("kl_has_no_effect", {"advantage_estimator": "cpgd", "use_kl_loss": True}),
]


@pytest.mark.parametrize(("rule", "changes"), HOLDING)
def test_a_rule_that_holds_is_silent(found, rule, changes):
    assert rule not in found(**changes)


def test_an_estimator_of_the_users_own_states_its_needs_in_its_file(found, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import torch_is_not_imported_here\nNEEDS_GROUPS = True\n")
    changes = {"advantage_estimator": f"{mine}:compute", "n_samples_per_prompt": 1, "train_batch_size": 4}
    assert "compares the samples" in found(**changes)["groups_need_samples"]
    mine.write_text("NEEDS_GROUPS = False\n")
    assert "groups_need_samples" not in found(**changes)
