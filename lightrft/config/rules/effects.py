"""Flags that were given and do nothing here, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from lightrft.config.availability import acts
from lightrft.config.flag import When
from lightrft.config.flags import FLAGS
from lightrft.config.resolve import Config
from lightrft.config.rules.rule import warning

_CLIPPING = ("clip_range", "clip_range_higher", "dual_clip")


@warning
def flag_without_effect(config: Config) -> Iterator[str]:
    for flag in FLAGS.values():
        if flag.name in config.given and not acts(config, flag):
            needs = " or ".join(str(when) for when in flag.acts_when)
            needs = needs if needs.startswith("without ") else f"with {needs}"
            where = _circumstance(config, flag.acts_when[0])
            yield f"--{flag.name} has no effect {where}: it acts only {needs}"


def _circumstance(config: Config, when: When) -> str:
    flag, value = FLAGS[when.flag], config.values[when.flag]
    if when.values == (False,):
        return f"with --{flag.name}"
    if not when.values:
        return f"without --{flag.name}" if value is None or value is False else f"with --{flag.name} {value}"
    shown = " ".join(value) if isinstance(value, list) else value
    origin = "" if flag.name in config.given else " (the default)"
    return f"with --{flag.name} {shown}{origin}"


@warning
def clipping_without_effect(config: Config) -> Iterator[str]:
    """With one optimizer step on each sample the ratio is exactly 1, and nothing is ever clipped."""
    on_policy = config.train_batch_size >= config.samples_per_rollout and config.max_epochs == 1
    given = [f"--{name}" for name in _CLIPPING if name in config.given and acts(config, FLAGS[name])]
    if on_policy and given:
        yield (
            f"{', '.join(given)}: no effect while every sample is trained once, by weights that have not "
            f"moved since it was drawn: the ratio is 1. Clipping acts with train_batch_size below "
            f"{config.samples_per_rollout} or max_epochs above 1"
        )


@warning
def greedy_samples_are_equal(config: Config) -> Iterator[str]:
    if config.eval_data is not None and config.eval_n_samples > 1 and not any(config.eval_temperature):
        yield (
            f"eval_n_samples ({config.eval_n_samples}) has no effect at eval_temperature 0: greedy "
            "responses to a prompt are all the same. Give --eval_temperature 1.0, or 0.0 1.0 for both"
        )


RULES = (flag_without_effect, clipping_without_effect, greedy_samples_are_equal)
