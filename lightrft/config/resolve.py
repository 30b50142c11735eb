"""From a command line, an environment and this host's GPUs to the values that a run uses."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightrft.config.arguments import parse
from lightrft.config.gpus import Gpu, read_gpus, torch_is_cpu_build
from lightrft.config.hub import Hub, read_hub
from lightrft.config.reward_spec import (
    MODEL,
    RewardModelSpec,
    RewardSpec,
    join_reward_models,
    parse_reward,
    parse_reward_models,
)
from lightrft.config.sources import absolute, split_sources
from lightrft.config.world import World, read_world
from lightrft.registry import is_user_path

if TYPE_CHECKING:
    from lightrft.config.plan import Plan

Modality = Literal["text", "vision"]
PATH_FLAGS = ("save_path", "ckpt_path", "log_dir", "use_tensorboard", "reward_recipe")
MODEL_FLAGS = ("pretrain", "critic_pretrain", "teacher_pretrain")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch takes settings from either
DATA_FLAGS = ("prompt_data", "eval_data", "pretrain_data")


@dataclass(frozen=True)
class Config:
    """The resolved flags, each an attribute (`config.train_batch_size`), and what they were resolved for.

    `num_ranks` is the number of training processes that the run will have; under `--dry_run` it may be an
    assumption. `on_gpu` says whether they run on GPUs.
    """

    values: Mapping[str, Any]
    modality: Modality
    world: World
    gpus: tuple[Gpu, ...]
    hub: Hub
    num_ranks: int
    on_gpu: bool
    given: frozenset[str] = frozenset()  # flags on the command line, as written
    resolved: Mapping[str, str] = field(default_factory=dict)  # flag -> how its default was derived
    deprecations: tuple[str, ...] = ()
    expandable_segments: tuple[str, ...] = ()  # variables that ask torch's allocator for them

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("values", {})  # absent while being unpickled
        if name in values:
            return values[name]
        raise AttributeError(f"there is no flag --{name}")

    @property
    def rewards(self) -> tuple[RewardSpec, ...]:
        """`--reward`, taken apart."""
        return tuple(parse_reward(word) for word in self.reward)

    @property
    def reward_models(self) -> tuple[RewardModelSpec, ...]:
        """The models of `--reward_pretrain` that `--reward` asks for."""
        names = {spec.name for spec in self.rewards if spec.kind == MODEL}
        named = parse_reward_models(self.reward_pretrain) if names else ()
        return tuple(model for model in named if model.reward in names)

    @property
    def ranks_word(self) -> str:
        """What the ranks are called in messages."""
        return "GPUs" if self.on_gpu else "processes"

    @property
    def samples_per_rollout(self) -> int:
        return int(self.rollout_batch_size * self.n_samples_per_prompt)

    @property
    def data_parallel_size(self) -> int:
        """Ranks that train on different samples."""
        return max(1, self.num_ranks // int(self.sp_size))

    @property
    def planning(self) -> bool:
        """True where nothing will be trained."""
        return bool(self.dry_run or self.print_config)

    def to_dict(self) -> dict[str, Any]:
        """Every flag with its resolved value, as JSON can hold it."""
        return dict(self.values)

    def plan(self, num_prompts: int | None = None) -> Plan:
        """Step arithmetic and memory for a prompt set of this size (None: unknown).

        Raises:
            ConfigError: the prompts are too few for one step; the message names what would fit.
        """
        from lightrft.config.plan import make_plan

        return make_plan(self, num_prompts)

    def check_prompts(self, num_prompts: int) -> list[str]:
        """Why a prompt set of this size cannot be trained on; empty where it can."""
        from lightrft.config.steps import enough_prompts

        problem = enough_prompts(self, num_prompts)
        return [problem] if problem else []


def resolve(
    argv: Sequence[str],
    modality: Modality,
    environ: Mapping[str, str],
    gpus: tuple[Gpu, ...] | None = None,
) -> Config:
    """The configuration that `argv` asks for. Does not check it: see `lightrft.config.rules.check`.

    `gpus` stands in for this host's in tests.

    Raises:
        ConfigError: the words of `argv` or a launcher's variables cannot be read.
    """
    arguments = parse(argv)
    values = dict(arguments.values)
    notes: dict[str, str] = {}
    world = read_world(environ)
    if gpus is None:
        gpus = () if torch_is_cpu_build() else read_gpus(environ)
    num_ranks, on_gpu = _place(values, world, gpus, notes)
    _resolve_defaults(values, notes)
    if values["bf16"] is None:
        values["bf16"], notes["bf16"] = _bf16(gpus, on_gpu)
    _resolve_paths(values)
    return Config(
        values=values,
        modality=modality,
        world=world,
        gpus=gpus,
        hub=read_hub(environ),
        num_ranks=num_ranks,
        on_gpu=on_gpu,
        given=arguments.given,
        resolved=notes,
        deprecations=arguments.deprecations,
        expandable_segments=_expandable_segments(environ),
    )


def _expandable_segments(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in ALLOCATOR if "expandable_segments:True" in environ.get(name, ""))


def _place(
    values: Mapping[str, Any], world: World, gpus: tuple[Gpu, ...], notes: dict[str, str]
) -> tuple[int, bool]:
    """How many ranks there will be, and whether on GPUs."""
    planning = values["dry_run"] or values["print_config"]
    if world.launcher:
        return world.size, bool(gpus)
    if values["num_gpus"] is not None:
        if planning:
            return values["num_gpus"], True
        return min(values["num_gpus"], max(1, len(gpus))), bool(gpus)
    if gpus or not planning:
        return max(1, len(gpus)), bool(gpus)
    needed = math.lcm(values["engine_tp_size"], values["sp_size"])
    if needed == 1 and values["engine_type"] == "hf":
        return 1, False
    notes["num_gpus"] = (
        f"{needed} assumed for the plan, as this host has none: the least common multiple of engine_tp_size "
        f"{values['engine_tp_size']} and sp_size {values['sp_size']}"
    )
    return needed, True


def _resolve_defaults(values: dict[str, Any], notes: dict[str, str]) -> None:
    """Defaults that follow from other flags. Each is noted, and only what was left open is touched."""

    def derive(name: str, value: Any, how: str) -> None:
        if values[name] is None and value is not None:
            values[name], notes[name] = value, how

    derive(
        "generate_max_len", max(1, values["max_len"] - values["prompt_max_len"]), "max_len - prompt_max_len"
    )
    cpgd = values["advantage_estimator"] == "cpgd"
    derive(
        "policy_loss",
        "cpgd" if cpgd else "ppo",
        f"goes with advantage_estimator {values['advantage_estimator']}",
    )
    derive("reward", *_reward(values))
    if any(parse_reward(word).kind == MODEL for word in values["reward"]):
        derive("reward_pretrain", values["pretrain"], "the same as pretrain")
    if values["advantage_estimator"] == "gae":
        derive("critic_pretrain", values["pretrain"], "the same as pretrain")
    if values["engine_type"] == "hf":
        derive("rollout_logprobs", "all", "the hf engine has them anyway")
    corrects = values["rollout_is"] != "none"
    derive(
        "rollout_logprobs", "all" if corrects else "sample", f"goes with rollout_is {values['rollout_is']}"
    )
    if values["use_dynamic_bsz"]:
        budget = values["max_len"] * values["micro_train_batch_size"]
        derive("max_tokens_per_gpu", budget, "max_len x micro_train_batch_size")
    if values["save_path"] is not None:
        derive("log_dir", str(Path(values["save_path"]) / "logs"), "logs in save_path")
    if values["load_checkpoint"]:
        derive("ckpt_path", values["save_path"], "the same as save_path")
    if values["use_wandb"] is not None:
        stem = Path(values["pretrain"]).name
        name = f"{stem}-{values['advantage_estimator']}-{time.strftime('%Y%m%d-%H%M%S')}"
        derive("wandb_run_name", name, "model, estimator and time")


def _reward(values: Mapping[str, Any]) -> tuple[list[str], str]:
    if values["remote_rm_url"] is not None:
        return ["remote"], "remote_rm_url is given"
    if values["reward_pretrain"] is not None:
        models = parse_reward_models(values["reward_pretrain"])
        return [model.reward for model in models], "reward_pretrain is given"
    return ["math"], "no reward was named; the rows need references"


def _bf16(gpus: tuple[Gpu, ...], on_gpu: bool) -> tuple[bool, str]:
    if not on_gpu:
        return False, "off on the CPU"
    if not gpus:
        return True, "assumed: GPUs with bfloat16"
    old = [gpu for gpu in gpus if not gpu.has_bf16]
    if old:
        major, minor = old[0].capability
        return False, f"{old[0].name} (sm_{major}{minor}) has no bfloat16"
    return True, f"{gpus[0].name} has bfloat16"


def _resolve_paths(values: dict[str, Any]) -> None:
    """Full paths for what lies on this host: a checkpoint that holds them may be read from another folder."""
    for name in PATH_FLAGS:
        if values[name] is not None:
            values[name] = str(Path(values[name]).expanduser().resolve())
    for name in MODEL_FLAGS:
        if values[name] is not None:
            values[name] = _absolute_model(values[name])
    if values["reward_pretrain"] is not None:
        models = parse_reward_models(values["reward_pretrain"])
        full = [RewardModelSpec(model.reward, _absolute_model(model.path)) for model in models]
        values["reward_pretrain"] = join_reward_models(full)
    for name in DATA_FLAGS:
        if values[name] is not None:
            values[name] = ",".join(str(absolute(source)) for source in split_sources(values[name]))
    values["reward"] = [_absolute_reward(word) for word in values["reward"]]


def _absolute_model(name: str) -> str:
    """The full path of a folder; hub names stay."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _absolute_reward(word: str) -> str:
    name = parse_reward(word).name
    if not is_user_path(name):
        return word
    path, _, rest = word.partition(".py:")
    return f"{Path(path + '.py').expanduser().resolve()}:{rest}"
