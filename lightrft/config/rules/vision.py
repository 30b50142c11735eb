"""Rules of vision-language runs, and of their flags in a run on text."""

from __future__ import annotations

from collections.abc import Iterator

from lightrft.config.flags.model import MULTIMODAL
from lightrft.config.model_files import architecture_problem, model_folder, read_config
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import error, warning


@warning
def multimodal_flags_act(config: Config) -> Iterator[str]:
    if config.modality == "text":
        for flag in MULTIMODAL.flags:
            if flag.name in config.given:
                yield f"--{flag.name} has no effect with train.py, which is for text: use train_vl.py"


@error
def pixel_limits_fit(config: Config) -> Iterator[str]:
    low, high = config.min_pixels, config.max_pixels
    if low is not None and high is not None and low > high:
        yield f"min_pixels ({low}) must be at most max_pixels ({high}): use --min_pixels {high}"


@error
def other_models_see(config: Config) -> Iterator[str]:
    """The critic and the teacher get the same prompts as the policy, pictures included."""
    if config.modality != "vision":
        return
    if config.teacher_model_url and config.advantage_estimator == "on_policy_distillation":
        yield (
            "teacher_model_url: a server is sent token ids and no pictures: use --teacher_pretrain with a "
            "vision-language model"
        )
    for flag in ("critic_pretrain", "teacher_pretrain"):
        name = config.values[flag]
        found = read_config(model_folder(name, config.hub)) if name else None
        problem = architecture_problem(found, "vision") if found else None
        if problem and "text model" in problem:
            kind = found.get("model_type") if found else ""
            yield f"--{flag} {name}: it is a text model ({kind}), and the prompts have pictures"


RULES = (multimodal_flags_act, pixel_limits_fit, other_models_see)
