"""What a checkpoint holds of a running loop, and how the loop takes it back: bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lightrft.trainer.checkpoint import restore_rng_state, rng_state
from lightrft.trainer.optimize import UpdateCounters

if TYPE_CHECKING:
    from lightrft.trainer.controller import Parts


def shared_state(parts: Parts, step: int) -> dict[str, Any]:
    """The part that is the same on all ranks, as JSON can hold it."""
    state = {
        "step": step,
        "sampler": parts.sampler.state_dict(),
        "counters": asdict(parts.updater.optimizer.counters),
        "kl_controller": parts.updater.kl_controller.state_dict(),
        "moments": parts.experience_maker.moments.state_dict(),
        "policy_version": parts.engine.policy_version,
    }
    if parts.critic_updater is not None:
        state["critic_counters"] = asdict(parts.critic_updater.optimizer.counters)
    return state


def local_state(parts: Parts) -> dict[str, Any]:
    """This rank's part: tensors and numbers."""
    state = {"policy": parts.policy.state_dict(), "rng": rng_state()}
    if parts.critic_updater is not None:
        state["critic"] = parts.critic_updater.optimizer.model.state_dict()
    if parts.ema is not None:
        state["ema"] = parts.ema.state_dict()
    return state


def restore(parts: Parts, shared: dict[str, Any], local: dict[str, Any]) -> int:
    """Put everything back where a checkpoint was written; returns the step to continue from."""
    parts.policy.load_state_dict(local["policy"])
    parts.sampler.load_state_dict(shared["sampler"])
    parts.updater.optimizer.counters = UpdateCounters(**shared["counters"])
    parts.updater.kl_controller.load_state_dict(shared["kl_controller"])
    parts.experience_maker.moments.load_state_dict(shared["moments"])
    if parts.critic_updater is not None:
        parts.critic_updater.optimizer.model.load_state_dict(local["critic"])
        parts.critic_updater.optimizer.counters = UpdateCounters(**shared["critic_counters"])
    if parts.ema is not None:
        parts.ema.load_state_dict(local["ema"])
    parts.engine.policy_version = shared["policy_version"]
    restore_rng_state(local["rng"])
    return int(shared["step"])
