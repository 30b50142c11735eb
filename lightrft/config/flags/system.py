"""Flags of the machine: distribution, the inference engine, memory, launching."""

from __future__ import annotations

from lightrft.config.flag import AT_LEAST_0, AT_LEAST_1, POSITIVE, SHARE_ABOVE_0, Flag, Group, When

FSDP = When("fsdp")
DEEPSPEED = When("fsdp", (False,))
ENGINE = When("engine_type", ("vllm", "sglang"))
REWARD_MODEL = When("reward", ("model",))

DISTRIBUTED = Group(
    "distributed",
    (
        Flag(
            "zero_stage",
            "int",
            2,
            "DeepSpeed ZeRO stage: 1 optimizer states, 2 + gradients, 3 + parameters",
            choices=(1, 2, 3),
            acts_when=(DEEPSPEED,),
        ),
        Flag("fsdp", "flag", False, "FSDP in place of DeepSpeed", planned="the FSDP backend"),
        Flag(
            "fsdp_cpu_offload",
            "flag",
            False,
            "offload FSDP optimizer states to the CPU",
            acts_when=(FSDP,),
        ),
        Flag(
            "fsdp_shard_size",
            "int",
            None,
            "GPUs that share one copy of the weights; fewer than all is hybrid sharding",
            default_text="all GPUs",
            range=AT_LEAST_1,
            acts_when=(FSDP,),
        ),
        Flag(
            "bf16",
            "flag",
            None,
            "bfloat16 mixed precision",
            default_text="on where the GPU has bfloat16, off on the CPU",
        ),
        Flag("no_bf16", "flag", None, "train in float32", negates="bf16"),
        Flag("gradient_checkpointing", "flag", False, "recompute activations to save memory"),
        Flag(
            "sp_size",
            "int",
            1,
            "sequence-parallel size",
            range=AT_LEAST_1,
            advised="1, 2, 4",
            planned="sequence parallelism",
            off=1,
        ),
    ),
)

INFERENCE_ENGINE = Group(
    "inference engine",
    (
        Flag(
            "engine_type",
            "str",
            "vllm",
            "rollout engine; hf generates with the policy module itself",
            choices=("vllm", "sglang", "hf"),
        ),
        Flag(
            "engine_tp_size",
            "int",
            1,
            "engine tensor-parallel size; must divide the number of GPUs",
            range=AT_LEAST_1,
            advised="7B: 1-2, 13B-34B: 2-4, 70B+: 4-8",
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_mem_util",
            "float",
            0.5,
            "share of GPU memory for the engine KV cache",
            range=SHARE_ABOVE_0,
            advised="0.3-0.9",
            acts_when=(ENGINE,),
        ),
        Flag(
            "enable_engine_sleep",
            "flag",
            True,
            "engine sleeps, freeing its GPU memory, while it is not generating",
            acts_when=(ENGINE,),
        ),
        Flag(
            "disable_engine_sleep",
            "flag",
            None,
            "turn engine sleep off",
            negates="enable_engine_sleep",
            acts_when=(ENGINE,),
        ),
        Flag(
            "rm_use_engine",
            "flag",
            False,
            "run the reward model on the inference engine",
            acts_when=(REWARD_MODEL,),
            planned="reward models on an engine",
        ),
        Flag(
            "rm_engine_cudagraph",
            "flag",
            False,
            "CUDA graphs for the reward model's engine",
            acts_when=(When("rm_use_engine"),),
        ),
        Flag(
            "engine_dtype",
            "str",
            "auto",
            "the engine's weights; auto follows the trainer",
            choices=("auto", "bfloat16", "float16", "float32"),
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_max_num_batched_tokens",
            "int",
            None,
            "most tokens in one engine step",
            default_text="the engine's own",
            range=AT_LEAST_1,
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_max_num_seqs",
            "int",
            None,
            "most sequences that the engine runs at once",
            default_text="the engine's own",
            range=AT_LEAST_1,
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_chunked_prefill",
            "flag",
            None,
            "let the engine read long prompts in pieces",
            default_text="the engine's own",
            acts_when=(ENGINE,),
        ),
        Flag(
            "no_engine_chunked_prefill",
            "flag",
            None,
            "read each prompt whole (old GPUs)",
            negates="engine_chunked_prefill",
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_kwargs",
            "json",
            None,
            "further arguments of the engine, as a JSON object",
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_timeout",
            "float",
            1800.0,
            "seconds without a finished response after which generation counts as stalled",
            range=POSITIVE,
            acts_when=(ENGINE,),
        ),
        Flag(
            "engine_self_test",
            "flag",
            True,
            "at the start: generate, sleep, wake, change a tensor, compare log-probs with the trainer's",
            acts_when=(ENGINE,),
        ),
        Flag(
            "no_engine_self_test",
            "flag",
            None,
            "start without the engine's self-test",
            negates="engine_self_test",
            acts_when=(ENGINE,),
        ),
        Flag(
            "rollout_logprobs",
            "str",
            None,
            "responses whose log-probs the engine returns: they cost it a third of its speed",
            choices=("all", "sample", "none"),
            default_text="all where --rollout_is needs them, else sample",
            acts_when=(ENGINE,),
        ),
        Flag(
            "sync_bucket_mb",
            "int",
            512,
            "weights travel to the engine in buckets of this size",
            range=AT_LEAST_1,
            acts_when=(ENGINE,),
        ),
        Flag(
            "check_weight_sync",
            "int",
            100,
            "compare the engine's weights with the trainer's at the first sync and every N steps; 0 = never",
            range=AT_LEAST_0,
            acts_when=(ENGINE,),
        ),
    ),
)

MEMORY = Group(
    "memory",
    (
        Flag("adam_offload", "flag", False, "offload Adam states to the CPU", acts_when=(DEEPSPEED,)),
        Flag("use_mp_opt", "flag", False, "mixed-precision optimizer (FSDP)", acts_when=(FSDP,)),
        Flag(
            "packing_samples",
            "flag",
            False,
            "pack several samples into one sequence",
            planned="packed sequences",
        ),
        Flag(
            "fused_linear_logprob",
            "flag",
            False,
            "fuse the LM head with the log-prob computation; saves memory for large vocabularies",
            planned="the fused log-prob",
        ),
        Flag(
            "chunk_size",
            "int",
            4096,
            "chunk size of the fused operation",
            range=AT_LEAST_1,
            acts_when=(When("fused_linear_logprob"),),
        ),
    ),
)

LAUNCH = Group(
    "launch and debugging",
    (
        Flag(
            "num_gpus",
            "int",
            None,
            "GPUs that `python train.py` starts on; a planning assumption under --dry_run",
            default_text="all visible",
            range=AT_LEAST_1,
        ),
        Flag("dry_run", "flag", False, "print the plan and exit"),
        Flag("print_config", "flag", False, "print the resolved flags as JSON and exit"),
        Flag("strict_validation", "flag", False, "treat every warning as an error"),
        Flag("debug", "flag", False, "report memory and gradient norm at every step"),
        Flag("local_rank", "int", None, "set by launchers", hidden=True),
    ),
)
