"""Evaluation: every row exactly once, by its own sampling settings, with no trace left in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightrft.data.sampler import eval_batches
from lightrft.distributed.collectives import rank, world_size
from lightrft.rollout.base import RolloutEngine, SamplingOptions
from lightrft.trainer.metrics import MetricSums
from lightrft.trainer.rollout_metrics import passed
from lightrft.types import Prompt, Rollout


class Evaluator:
    """Scores the policy on held-out prompts.

    Each temperature is a pass of its own; 0 is greedy. Results of the first stand under `eval/`, those of the
    others under `eval/t<temperature>/`. The draws depend on the seed alone, so that two evaluations of the
    same weights agree.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        engine: RolloutEngine,
        reward: Any,
        sampling: SamplingOptions,
        temperatures: Sequence[float],
        batch_size: int,
    ) -> None:
        self.prompts = prompts
        self.engine = engine
        self.reward = reward
        self.sampling = sampling
        self.temperatures = list(temperatures)
        self.batch_size = batch_size

    def evaluate(self, device: object) -> dict[str, float]:
        """Means over all rows and ranks. Collective. Leaves the engine awake, as rollouts come next."""
        out: dict[str, float] = {}
        self.engine.wake()
        for temperature in self.temperatures:
            metrics = self._one_pass(replace(self.sampling, temperature=temperature))
            prefix = "eval" if temperature == self.temperatures[0] else f"eval/t{temperature:g}"
            out |= {f"{prefix}/{name}": value for name, value in metrics.reduce(device).items()}
        return out

    def _one_pass(self, sampling: SamplingOptions) -> MetricSums:
        metrics = MetricSums()
        for rows in eval_batches(len(self.prompts), self.batch_size, rank(), world_size()):
            # Also without rows: ranks that share an engine generate together.
            rollouts = self.engine.generate([self.prompts[i] for i in rows], sampling)
            self._add(rollouts, metrics)
        return metrics

    def _add(self, rollouts: list[Rollout], metrics: MetricSums) -> None:
        result = self.reward(rollouts)
        n = len(rollouts)
        scored = [r for r in result.rewards if r is not None]
        metrics.add("reward", sum(scored), len(scored))
        # A response that could not be graded is not a solved one: rows are never left out of the rate.
        metrics.add("pass_rate", sum(passed(result, i) for i in range(n)), n)
        metrics.add("response_length", sum(len(r.token_ids) for r in rollouts), n)
        metrics.add("truncated_share", sum(r.finish_reason == "length" for r in rollouts), n)
        metrics.add("unparsed_share", sum(s == "unparsed" for s in result.statuses), n)
        metrics.add_total("rows", n)


def summary(metrics: dict[str, float]) -> str:
    """One line for the console: `greedy pass .412 reward .433 length 5.1 | t1 pass .238 ...`."""
    prefixes = sorted({name.rpartition("/")[0] for name in metrics if name.startswith("eval")})
    parts = []
    for prefix in prefixes:
        values = {k.rpartition("/")[2]: v for k, v in metrics.items() if k.rpartition("/")[0] == prefix}
        parts.append(
            f"{prefix} pass rate {values['pass_rate']:.3f} reward {values['reward']:.3f} "
            f"length {values['response_length']:.1f} truncated {values['truncated_share']:.0%}"
        )
    return " | ".join(parts)
