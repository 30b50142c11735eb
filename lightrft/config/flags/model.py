"""Flags of the model and of what it sees besides text."""

from __future__ import annotations

from lightrft.config.flag import AT_LEAST_0, AT_LEAST_1, POSITIVE, SHARE, Flag, Group, When

LORA = When("lora_rank")
CRITIC = When("advantage_estimator", ("gae",))
DISTILLATION = When("advantage_estimator", ("on_policy_distillation",))

MODEL = Group(
    "model",
    (
        Flag(
            "pretrain",
            "str",
            None,
            "path or hub name of the pretrained model and its tokenizer",
            required="always",
            metavar="MODEL",
        ),
        Flag(
            "reward_pretrain",
            "str",
            None,
            "reward model: path or hub name of a sequence-classification checkpoint with one label; several "
            "are a=MODEL,b=MODEL, and then the rewards model.a and model.b",
            default_text="value of --pretrain",
            metavar="MODEL",
            acts_when=(When("reward", ("model",)),),
        ),
        Flag(
            "remote_rm_url",
            "str",
            None,
            "URL of a remote reward model server; its token is read from LIGHTRFT_RM_TOKEN",
            metavar="URL",
            acts_when=(When("reward", ("remote",)),),
        ),
        Flag(
            "max_len",
            "int",
            4096,
            "longest sequence, prompt + response, in tokens",
            range=AT_LEAST_1,
        ),
        Flag("prompt_max_len", "int", 2048, "longest prompt, in tokens", range=AT_LEAST_1),
        Flag(
            "generate_max_len",
            "int",
            None,
            "longest response, in tokens; max_len holds as well",
            default_text="max_len - prompt_max_len",
            range=AT_LEAST_1,
        ),
        Flag(
            "critic_pretrain",
            "str",
            None,
            "model that the critic starts from",
            default_text="value of --pretrain",
            metavar="MODEL",
            acts_when=(CRITIC,),
        ),
        Flag(
            "teacher_pretrain",
            "str",
            None,
            "teacher of on-policy distillation, loaded in process",
            metavar="MODEL",
            acts_when=(DISTILLATION,),
        ),
        Flag(
            "teacher_model_url",
            "str",
            None,
            "teacher of on-policy distillation, behind a server; its token: LIGHTRFT_TEACHER_TOKEN",
            metavar="URL",
            acts_when=(DISTILLATION,),
        ),
        Flag(
            "trust_remote_code",
            "flag",
            False,
            "run the Python code that a model folder brings along; only for models whose code you have read",
        ),
        Flag(
            "attn_implementation",
            "str",
            "sdpa",
            "attention of the trainer; eager suits old GPUs",
            choices=("eager", "sdpa", "flash_attention_2"),
        ),
        Flag(
            "lora_rank",
            "int",
            0,
            "rank of LoRA adapters; 0 trains all weights",
            range=AT_LEAST_0,
            planned="LoRA adapters",
            off=0,
        ),
        Flag("lora_alpha", "int", 16, "LoRA scale", range=AT_LEAST_1, acts_when=(LORA,)),
        Flag("lora_dropout", "float", 0.0, "dropout on LoRA's input", range=SHARE, acts_when=(LORA,)),
        Flag(
            "target_modules",
            "words",
            ["all-linear"],
            "modules that get LoRA adapters",
            aliases=("lora_target",),
            acts_when=(LORA,),
        ),
    ),
)

MULTIMODAL = Group(
    "multimodal",
    (
        Flag(
            "mixed_mm_data",
            "flag",
            False,
            "the data mixes multimodal and text-only rows; without it the latter are dropped",
        ),
        Flag(
            "processor",
            "str",
            None,
            "multimodal processor: a folder, a hub name, or the name of a class of transformers",
            default_text="auto-detected",
        ),
        Flag("images_key", "str", "images", "column with a row's images"),
        Flag("videos_key", "str", "videos", "column with a row's videos"),
        Flag(
            "min_pixels",
            "int",
            None,
            "smallest image, in pixels; smaller ones are enlarged",
            default_text="the processor's own",
            range=POSITIVE,
        ),
        Flag(
            "max_pixels",
            "int",
            None,
            "largest image, in pixels; larger ones are shrunk",
            default_text="the processor's own",
            range=POSITIVE,
        ),
        Flag(
            "limit_mm_image_per_prompt",
            "int",
            10,
            "most images in one prompt; a row with more is dropped",
            range=AT_LEAST_1,
        ),
        Flag("freeze_prefix", "flag", False, "keep the vision tower's weights as they are"),
    ),
)
