"""Flags of the optimizer and of batch sizes."""

from __future__ import annotations

from lightrft.config.flag import AT_LEAST_0, AT_LEAST_1, POSITIVE, SHARE, SHARE_BELOW_1, Flag, Group, When
from lightrft.config.flags.model import CRITIC

TRAINING = Group(
    "training",
    (
        Flag(
            "num_episodes",
            "int",
            1,
            "total passes over the prompts",
            range=AT_LEAST_1,
            advised="10-100 for most tasks",
        ),
        Flag(
            "max_epochs",
            "int",
            1,
            "training epochs over each batch of experience",
            range=AT_LEAST_1,
            advised="1-3",
        ),
        Flag(
            "actor_learning_rate",
            "float",
            5e-7,
            "actor (policy) learning rate",
            range=POSITIVE,
            advised="1e-7 to 5e-6",
        ),
        Flag(
            "critic_learning_rate",
            "float",
            9e-6,
            "critic (value) learning rate",
            range=POSITIVE,
            advised="1e-6 to 1e-5",
            acts_when=(CRITIC,),
        ),
        Flag(
            "lr_warmup_ratio",
            "float",
            0.03,
            "share of all optimizer steps spent warming up",
            range=SHARE,
            advised="0.0-0.1",
        ),
        Flag(
            "lr_scheduler",
            "str",
            "constant",
            "learning rate after the warm-up; cosine and linear end at a tenth of the peak",
            choices=("constant", "cosine", "linear"),
        ),
        Flag("max_norm", "float", 1.0, "largest gradient norm (clipping)", range=POSITIVE),
        Flag("l2", "float", 0.0, "L2 regularisation (weight decay)", range=AT_LEAST_0),
        Flag("adam_betas", "pair", [0.9, 0.95], "Adam betas", range=SHARE_BELOW_1),
        Flag(
            "freezing_actor_steps",
            "int",
            0,
            "steps at the start that train only the critic",
            range=AT_LEAST_0,
            acts_when=(CRITIC,),
        ),
        Flag(
            "max_skipped_steps",
            "int",
            10,
            "optimizer steps in a row that may be skipped for a loss or gradient that is not finite",
            range=AT_LEAST_1,
        ),
        Flag("seed", "int", 42, "seed of data order, sampling and new weights", range=AT_LEAST_0),
        Flag(
            "enable_ema",
            "flag",
            False,
            "keep an exponential moving average of the policy",
        ),
        Flag(
            "ema_beta",
            "float",
            0.992,
            "decay of the moving average",
            range=SHARE,
            acts_when=(When("enable_ema"),),
        ),
        Flag(
            "ptx_coef",
            "float",
            0.05,
            "weight of the language-model loss on --pretrain_data",
            range=AT_LEAST_0,
            acts_when=(When("pretrain_data"),),
        ),
    ),
)

BATCH_SIZE = Group(
    "batch size",
    (
        Flag(
            "train_batch_size",
            "int",
            None,
            "TBS: samples per optimizer step over all GPUs = micro_train_batch_size x GPUs x gradient "
            "accumulation steps",
            required="always",
            range=AT_LEAST_1,
        ),
        Flag(
            "micro_train_batch_size",
            "int",
            1,
            "training samples per GPU per forward",
            range=AT_LEAST_1,
            advised="1, 2, 4",
        ),
        Flag(
            "rollout_batch_size",
            "int",
            None,
            "RBS: prompts per rollout over all GPUs; must be divisible by the number of GPUs",
            required="always",
            range=AT_LEAST_1,
        ),
        Flag(
            "micro_rollout_batch_size",
            "int",
            2,
            "rollout samples per GPU per forward",
            range=AT_LEAST_1,
            advised="2, 4, 8",
        ),
        Flag(
            "use_dynamic_bsz",
            "flag",
            False,
            "cut micro-batches by a token budget in place of a number of samples",
            planned="micro-batches by token budget",
        ),
        Flag(
            "max_tokens_per_gpu",
            "int",
            None,
            "token budget of a micro-batch",
            default_text="max_len x micro_train_batch_size",
            range=AT_LEAST_1,
            acts_when=(When("use_dynamic_bsz"),),
        ),
    ),
)
