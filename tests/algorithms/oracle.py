"""The same formulas again, slowly: NumPy float64, one token at a time, with masked tokens taken out first.

Nothing here shares code with `lightrft.algorithms`, nor its tricks (no broadcast, no cumulative sum, no fill
values), so that a mistake has to be made twice to go unseen. `mask[i][t]` is 1 at response tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass
class Case:
    """A random batch: what estimators see."""

    rewards: Array  # [B], NaN excludes
    groups: Array  # [B]
    mask: Array  # [B, T]
    token_rewards: Array  # [B, T]
    values: Array  # [B, T]
    old: Array  # [B, T]
    teacher: Array  # [B, T]
    gamma: float = 1.0
    lambd: float = 0.95
    group_std: bool = True
    opd_kl_coef: float = 1.0
    task_reward: bool = True


def places(mask: Array, row: int) -> list[int]:
    """The positions of a row's response tokens, in order."""
    return [t for t in range(mask.shape[1]) if mask[row, t]]


def peers(case: Case, row: int) -> list[float]:
    """The rewards of all rows of the row's group that have one, its own included."""
    same = [i for i in range(len(case.rewards)) if case.groups[i] == case.groups[row]]
    return [float(case.rewards[i]) for i in same if not math.isnan(case.rewards[i])]


def is_tied(rewards: list[float]) -> bool:
    if len(rewards) < 2:
        return True
    size = max(abs(r) for r in rewards)
    return max(rewards) - min(rewards) <= 1e-6 * size


def unbiased_std(rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards)
    return math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))


def raw_score(case: Case, row: int) -> float:
    return float(case.rewards[row])


def centred_score(case: Case, row: int) -> float:
    rewards = peers(case, row)
    return 0.0 if is_tied(rewards) else raw_score(case, row) - sum(rewards) / len(rewards)


def normalised_score(case: Case, row: int) -> float:
    score = centred_score(case, row)
    if score == 0.0 or not case.group_std:
        return score
    return score / (unbiased_std(peers(case, row)) + 1e-6)


def leave_one_out_score(case: Case, row: int) -> float:
    rewards = peers(case, row)
    if is_tied(rewards):
        return 0.0
    others = (sum(rewards) - raw_score(case, row)) / (len(rewards) - 1)
    return raw_score(case, row) - others


def each_row(case: Case, of_row: Any) -> Array:
    """`of_row(row, positions) -> values` for rows that count; 0 everywhere else."""
    out = np.zeros(case.mask.shape)
    for row in range(len(case.rewards)):
        where = places(case.mask, row)
        if where and not math.isnan(case.rewards[row]):
            out[row, where] = of_row(row, where)
    return out


def discounted(case: Case, score: Any) -> Array:
    """Sum over later tokens of gamma^distance x reward, with the score at the last token."""

    def of_row(row: int, where: list[int]) -> list[float]:
        rewards = [float(case.token_rewards[row, t]) for t in where]
        rewards[-1] += score(case, row)
        steps = range(len(where))
        return [sum(case.gamma ** (j - i) * rewards[j] for j in steps if j >= i) for i in steps]

    return each_row(case, of_row)


def constant(case: Case, score: Any) -> Array:
    return each_row(case, lambda row, where: [score(case, row)] * len(where))


def gae(case: Case) -> Array:
    """A_i = sum over j >= i of (gamma lambda)^(j - i) delta_j."""

    def of_row(row: int, where: list[int]) -> list[float]:
        rewards = [float(case.token_rewards[row, t]) for t in where]
        rewards[-1] += raw_score(case, row)
        values = [float(case.values[row, t]) for t in where] + [0.0]
        steps = range(len(where))
        delta = [rewards[i] + case.gamma * values[i + 1] - values[i] for i in steps]
        decay = case.gamma * case.lambd
        return [sum(decay ** (j - i) * delta[j] for j in steps if j >= i) for i in steps]

    return each_row(case, of_row)


def distillation(case: Case) -> Array:
    def of_row(row: int, where: list[int]) -> list[float]:
        task = normalised_score(case, row) if case.task_reward else 0.0
        return [task + case.opd_kl_coef * (case.teacher[row, t] - case.old[row, t]) for t in where]

    return each_row(case, of_row)


ESTIMATORS: dict[str, Any] = {
    "gae": gae,
    "reinforce": lambda case: discounted(case, raw_score),
    "reinforce++": lambda case: discounted(case, raw_score),
    "reinforce_baseline": lambda case: discounted(case, centred_score),
    "rloo": lambda case: discounted(case, leave_one_out_score),
    "group_norm": lambda case: discounted(case, normalised_score),
    "cpgd": lambda case: constant(case, normalised_score),
    "on_policy_distillation": distillation,
}


# --- Policy losses -----------------------------------------------------------------------------------


@dataclass
class LossCase:
    """What policy losses see; `[B, T]` arrays."""

    new: Array
    old: Array
    advantages: Array
    mask: Array
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 0.0
    drift: float = 0.0


def limited(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def pessimist(ratio: float, advantage: float, case: LossCase) -> float:
    """The clipped surrogate of one token."""
    inside = limited(ratio, 1 - case.low, 1 + case.high)
    return -min(ratio * advantage, inside * advantage)


def every_token(case: LossCase, of_token: Any) -> Array:
    """`of_token(row, t)` at response tokens, NaN elsewhere: no one may look there."""
    out = np.full(case.mask.shape, np.nan)
    for row in range(case.mask.shape[0]):
        for t in places(case.mask, row):
            out[row, t] = of_token(row, t)
    return out


def gap(case: LossCase, row: int, t: int) -> float:
    return float(case.new[row, t] - case.old[row, t])


def ppo(case: LossCase) -> Array:
    def of_token(i: int, t: int) -> float:
        advantage = float(case.advantages[i, t])
        loss = pessimist(math.exp(gap(case, i, t)), advantage, case)
        if case.dual_clip and advantage < 0:
            loss = min(loss, case.dual_clip * abs(advantage))
        return loss

    return every_token(case, of_token)


def cpgd(case: LossCase) -> Array:
    def of_token(i: int, t: int) -> float:
        advantage, new, old = (float(x[i, t]) for x in (case.advantages, case.new, case.old))
        if advantage > 0:
            kept = min(new, old + math.log(1 + case.high))
        else:
            kept = max(new, old + math.log(1 - case.low))
        return -advantage * kept + case.drift * (math.exp(new - old) - 1 - (new - old))

    return every_token(case, of_token)


def gspo(case: LossCase) -> Array:
    def of_token(i: int, t: int) -> float:
        gaps = [gap(case, i, s) for s in places(case.mask, i)]
        return pessimist(math.exp(sum(gaps) / len(gaps)), float(case.advantages[i, t]), case)

    return every_token(case, of_token)


def gmpo(case: LossCase) -> Array:
    """The product of each token's pessimistic ratio, to the power of 1 / length."""

    def pessimistic_ratio(i: int, s: int) -> float:
        ratio, advantage = math.exp(gap(case, i, s)), float(case.advantages[i, s])
        if advantage > 0:
            return min(ratio, 1 + case.high)
        return max(ratio, 1 - case.low) if advantage < 0 else ratio

    def of_token(i: int, t: int) -> float:
        where = places(case.mask, i)
        product = math.prod(pessimistic_ratio(i, s) for s in where)
        return -float(case.advantages[i, t]) * product ** (1 / len(where))

    return every_token(case, of_token)


def cispo(case: LossCase) -> Array:
    def of_token(i: int, t: int) -> float:
        weight = limited(math.exp(gap(case, i, t)), 1 - case.low, 1 + case.high)
        return -weight * float(case.advantages[i, t]) * float(case.new[i, t])

    return every_token(case, of_token)


def sapo(case: LossCase) -> Array:
    def of_token(i: int, t: int) -> float:
        advantage = float(case.advantages[i, t])
        tau = 1.0 if advantage > 0 else 1.05
        gate = 1 / (1 + math.exp(-tau * (math.exp(gap(case, i, t)) - 1)))
        return -gate * (4 / tau) * advantage

    return every_token(case, of_token)


LOSSES: dict[str, Any] = {
    "ppo": ppo,
    "cpgd": cpgd,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
}


# --- Everything around them --------------------------------------------------------------------------


def kl(new: float, ref: float, estimator: str) -> float:
    x = new - ref
    return {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[estimator]


def aggregate(losses: Array, mask: Array, mode: str, max_len: int) -> float:
    """The loss itself, already divided; 0 for a batch without a token."""
    rows = [[float(losses[i, t]) for t in places(mask, i)] for i in range(mask.shape[0])]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token-mean":
        tokens = [x for row in rows for x in row]
        return sum(tokens) / len(tokens)
    per_row = {
        "seq-mean-token-sum": sum,
        "seq-mean-token-mean": lambda row: sum(row) / len(row),
        "seq-mean-token-sum-norm": lambda row: sum(row) / max_len,
    }[mode]
    return sum(per_row(row) for row in rows) / len(rows)


def value_loss(value: float, old: float, target: float, clip: float) -> float:
    bounded = limited(value, old - clip, old + clip)
    return max((value - target) ** 2, (bounded - target) ** 2) / 2


def weight(old: Array, rollout: Array, mask: Array, row: int, t: int, mode: str, cap: float) -> float:
    """The correction of one response token; `rollout` is NaN where the engine gave nothing."""
    known = [s for s in places(mask, row) if not math.isnan(rollout[row, s])]
    if mode == "none" or (mode != "sequence" and t not in known):
        return 1.0
    if mode == "sequence":
        return min(math.exp(sum(float(old[row, s] - rollout[row, s]) for s in known)), cap)
    ratio = math.exp(float(old[row, t] - rollout[row, t]))
    if mode == "mask":
        return 1.0 if 1 / cap <= ratio <= cap else 0.0
    return min(ratio, cap)


def overlong(length: int, max_len: int, buffer: int, factor: float) -> float:
    expected = max_len - buffer
    return min(0.0, -(length - expected) / buffer * factor)


def whitened(x: Array, mask: Array) -> Array:
    where = [(i, t) for i in range(mask.shape[0]) for t in places(mask, i)]
    tokens = [float(x[p]) for p in where]
    out = np.zeros(x.shape)
    if tokens:
        mean = sum(tokens) / len(tokens)
        variance = sum((v - mean) ** 2 for v in tokens) / len(tokens)
        for p in where:
            out[p] = (float(x[p]) - mean) / math.sqrt(variance + 1e-8)
    return out
