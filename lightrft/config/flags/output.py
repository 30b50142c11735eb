"""Flags of what a run writes: logs and checkpoints."""

from __future__ import annotations

from lightrft.config.flag import AT_LEAST_0, AT_LEAST_1, POSITIVE, Flag, Group, When
from lightrft.config.flags.model import CRITIC

WANDB = When("use_wandb")

LOGGING = Group(
    "logging",
    (
        Flag(
            "log_dir",
            "str",
            None,
            "folder for logs and plots",
            default_text="logs/ in --save_path",
            metavar="FOLDER",
        ),
        Flag(
            "plot_every",
            "int",
            10,
            "plot the generation-length distribution every N steps",
            range=AT_LEAST_0,
            planned="plots of generation lengths",
            off=0,
        ),
        Flag("use_tensorboard", "str", None, "TensorBoard log folder", metavar="FOLDER"),
        Flag(
            "use_wandb",
            "str",
            None,
            "Weights & Biases PROJECT name; the key is read from WANDB_API_KEY",
            metavar="PROJECT",
            aliases=("wandb_project",),
        ),
        Flag("wandb_org", "str", None, "W&B organisation", metavar="NAME", acts_when=(WANDB,)),
        Flag(
            "wandb_run_name",
            "str",
            None,
            "W&B run name",
            default_text="generated",
            metavar="NAME",
            acts_when=(WANDB,),
        ),
    ),
)

CHECKPOINTS = Group(
    "checkpoints",
    (
        Flag(
            "save_path",
            "str",
            None,
            "folder that checkpoints are saved to",
            required="to train",
            metavar="FOLDER",
        ),
        Flag(
            "ckpt_path",
            "str",
            None,
            "checkpoint to load",
            default_text="the newest in --save_path",
            metavar="FOLDER",
            acts_when=(When("load_checkpoint"),),
        ),
        Flag("load_checkpoint", "flag", False, "load the checkpoint"),
        Flag("save_interval", "int", 1, "save every N episodes", range=AT_LEAST_1),
        Flag("save_steps", "int", 0, "save every N steps as well; 0 = off", range=AT_LEAST_0),
        Flag("save_hf_ckpt", "flag", False, "write a Hugging Face folder at each save, not only at the end"),
        Flag(
            "save_value_network",
            "flag",
            False,
            "write the critic's Hugging Face folder as well",
            acts_when=(CRITIC,),
        ),
        Flag("max_ckpt_num", "int", 3, "most checkpoints kept", range=AT_LEAST_1),
        Flag("max_ckpt_mem", "int", 1000, "most checkpoint storage, GB", range=POSITIVE),
    ),
)
