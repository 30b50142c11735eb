"""Flags of data, rewards and evaluation."""

from __future__ import annotations

from lightrft.config.flag import AT_LEAST_0, AT_LEAST_1, POSITIVE, Flag, Group, Range, When

EVALUATION_DATA = When("eval_data")
OVERLONG = When("overlong_buffer")

DATA = Group(
    "data",
    (
        Flag(
            "prompt_data",
            "str",
            None,
            "training prompts: .jsonl, .json, .parquet, a saved dataset folder or a hub name; several "
            "separated by commas; path@[a:b] takes a slice",
            required="to train",
            metavar="DATA",
        ),
        Flag(
            "prompt_data_probs",
            "numbers",
            None,
            "share of each source of --prompt_data in the mix",
            default_text="by size",
            range=Range(0, 1),
        ),
        Flag(
            "input_key",
            "str",
            "input",
            "column with the prompt, a text or a list of messages; without it prompt, question or problem",
        ),
        Flag(
            "reference_key",
            "str",
            None,
            "column with the accepted answers; dots lead into nested columns",
            default_text="reward_model.ground_truth, ground_truth or answer",
        ),
        Flag(
            "label_key",
            "str",
            None,
            "column that chooses a row's recipe of --reward_recipe",
            acts_when=(When("reward_recipe"),),
        ),
        Flag(
            "apply_chat_template",
            "flag",
            False,
            "make text prompts a user's message; chats always use the template",
        ),
        Flag("system_prompt", "str", None, "first message of chats that bring none"),
        Flag("input_template", "str", None, "text around each prompt; {} stands for the prompt"),
        Flag("strict_data", "flag", False, "a bad row is an error in place of a counted drop"),
        Flag(
            "truncate_prompts",
            "flag",
            False,
            "cut text prompts over prompt_max_len at their left in place of dropping them",
        ),
        Flag(
            "pretrain_data",
            "str",
            None,
            "texts for a language-model loss beside the policy's (PTX)",
            metavar="DATA",
        ),
    ),
)

REWARDS = Group(
    "rewards",
    (
        Flag(
            "reward",
            "words",
            None,
            "rewards, summed by weight",
            choices=(
                "gsm8k",
                "math",
                "exact_match",
                "format",
                "geo3k",
                "multiple_choice",
                "length",
                "model",
                "remote",
            ),
            default_text="remote with --remote_rm_url, model with --reward_pretrain, else math",
            metavar="NAME[:W] ...",
            user_file=True,
            planned_choices={
                "length": "the length rule",
                "remote": "remote reward servers",
            },
        ),
        Flag(
            "reward_recipe",
            "str",
            None,
            "JSON file that maps labels to rewards",
            metavar="FILE",
            planned="recipes by label",
        ),
        Flag("reward_timeout", "float", 10.0, "seconds that grading one sample may take", range=POSITIVE),
    ),
)

REWARD_PROCESSING = Group(
    "reward processing",
    (
        Flag(
            "reward_running_norm",
            "flag",
            False,
            "normalise rewards by running statistics",
        ),
        Flag(
            "reward_running_norm_minus_mean",
            "flag",
            False,
            "subtract the mean as well",
            acts_when=(When("reward_running_norm"),),
        ),
        Flag("advantages_norm", "flag", False, "normalise advantages"),
        Flag("advantage_clip", "float", 0.0, "clip advantages to +-value; 0 = off", range=AT_LEAST_0),
        Flag("reward_clip", "float", 0.0, "clip rewards to +-value; 0 = off", range=AT_LEAST_0),
        Flag(
            "overlong_buffer",
            "flag",
            False,
            "penalise responses that run into the last tokens of generate_max_len (DAPO)",
        ),
        Flag(
            "overlong_buffer_len",
            "int",
            0,
            "tokens over which the penalty grows from 0 to its full size",
            range=AT_LEAST_0,
            acts_when=(OVERLONG,),
        ),
        Flag(
            "overlong_buffer_penalty_factor",
            "float",
            1.0,
            "size of the full penalty",
            range=AT_LEAST_0,
            acts_when=(OVERLONG,),
        ),
    ),
)

EVALUATION = Group(
    "evaluation",
    (
        Flag(
            "eval_data",
            "str",
            None,
            "prompts to evaluate on, every row once, after the last step",
            metavar="DATA",
        ),
        Flag(
            "eval_before_train",
            "flag",
            False,
            "evaluate before the first step as well",
            acts_when=(EVALUATION_DATA,),
        ),
        Flag(
            "eval_steps",
            "int",
            0,
            "evaluate every N steps as well; 0 = only after the last",
            range=AT_LEAST_0,
            acts_when=(EVALUATION_DATA,),
        ),
        Flag(
            "eval_temperature",
            "numbers",
            [0.0],
            "evaluate at each of these temperatures; 0 is greedy",
            range=AT_LEAST_0,
            acts_when=(EVALUATION_DATA,),
        ),
        Flag(
            "eval_n_samples",
            "int",
            1,
            "responses per evaluation prompt at a temperature above 0",
            range=AT_LEAST_1,
            acts_when=(EVALUATION_DATA,),
        ),
    ),
)
