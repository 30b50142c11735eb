"""What `reward_bench` grades: a data set's own answers, or the responses of a saved rollout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightrft.config.resolve import Config
from lightrft.config.sources import split_sources
from lightrft.data.processors import Content, Encoded
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import BadRow, own_answers
from lightrft.data.sources import Row, RowProblem, read_rows
from lightrft.errors import DataError
from lightrft.trainer.run_data import EVAL_SPLIT, prompt_options
from lightrft.types import FinishReason, Prompt, RewardResult, RewardStatus, Rollout

ANSWER_MARKS = (r"\boxed", "####")


@dataclass(frozen=True)
class Samples:
    """Responses to grade, and what a run has said of them already, where one has."""

    title: str
    rollouts: list[Rollout]
    problems: list[RowProblem] = field(default_factory=list)  # rows that could not be used
    saved: RewardResult | None = None
    are_right: bool = False  # own answers: every one should earn a whole reward


class _Untokenized:
    """Stands in for a processor: graders look at texts, and no model is needed to read them."""

    def encode(self, prompts: Sequence[Content]) -> list[Encoded | DataError]:
        return [Encoded([0], p if isinstance(p, str) else str(p[-1].get("content"))) for p in prompts]

    def truncate(self, encoded: Encoded, max_len: int) -> Encoded:
        return encoded

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""


def own_answer_samples(config: Config, split: str = EVAL_SPLIT) -> Samples:
    """Every row of `--prompt_data`, answered with what its reference column holds.

    A solution is the response as it stands. A bare answer is put into the form that rules ask for (a thought,
    then a box): what is tested is how answers are compared.

    Raises:
        DataError: a source cannot be read, or no row of it has an answer.
    """
    options = replace(prompt_options(config), split=split)
    answers: dict[str, list[str]] = {}
    for source in split_sources(config.prompt_data):
        for row in read_rows(source, split):
            if isinstance(row, Row):
                answers[row.source] = _answers(row, options)
    prompts = load_prompts(config.prompt_data, options, _Untokenized())
    problems = list(prompts.report.problems)
    rollouts: list[Rollout] = []
    for prompt in prompts:
        if answers[prompt.source]:
            rollouts.append(Rollout(prompt, 0, [0], as_response(answers[prompt.source][0]), "stop"))
        else:
            problems.append(RowProblem(prompt.source, "no answer of its own"))
    if not rollouts:
        raise DataError(f"{config.prompt_data}: no row has an answer: --reference_key names its column")
    return Samples(f"own answers of {config.prompt_data}", rollouts, problems, are_right=True)


def _answers(row: Row, options: Any) -> list[str]:
    try:
        return own_answers(row, options)
    except BadRow:  # the loader reports it
        return []


def as_response(answer: str) -> str:
    """`x = 4 #### 4` as it is, `4` as `<think>…</think> \\boxed{4}`."""
    if any(mark in answer for mark in ANSWER_MARKS):
        return answer
    return rf"<think>It is known.</think> \boxed{{{answer}}}"


def saved_samples(path: Path) -> Samples:
    """The responses of a `trajectories/step_*.jsonl`, or of any JSON lines with `response` and `references`.

    Raises:
        DataError: the file cannot be read, or no line of it can be used.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"--rollouts {path}: {error.strerror}") from error
    rollouts: list[Rollout] = []
    rewards: list[float | None] = []
    statuses: list[RewardStatus] = []
    problems: list[RowProblem] = []
    for number, line in enumerate(lines, 1):
        source = f"{path.name}:{number}"
        try:
            values = json.loads(line)
            rollouts.append(_rollout(values, len(rollouts), source))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(RowProblem(source, "unusable line", f"{type(error).__name__}: {error}"))
            continue
        reward = values.get("reward")
        rewards.append(float(reward) if isinstance(reward, (int, float)) else None)
        given: RewardStatus | None = values.get("status")
        statuses.append(given or ("error" if rewards[-1] is None else "ok"))
    if not rollouts:
        listed = "; ".join(str(problem) for problem in problems[:3]) or "it is empty"
        raise DataError(f"--rollouts {path}: no line holds a response: {listed}")
    saved = RewardResult(rewards, _saved_parts(lines, problems, len(rollouts)), statuses)
    return Samples(f"rollouts of {path}", rollouts, problems, saved)


def _rollout(values: Any, index: int, source: str) -> Rollout:
    references = values["references"]
    if not isinstance(values["response"], str) or not isinstance(references, list):
        raise TypeError("response is a text and references a list")
    label = values.get("label")
    prompt = Prompt(
        index,
        [0],
        str(values.get("prompt", "")),
        [str(reference) for reference in references],
        None if label is None else str(label),
        str(values.get("source") or source),
    )
    finish: FinishReason = values.get("finish_reason") or "stop"
    return Rollout(prompt, int(values.get("sample") or 0), [0], values["response"], finish)


def _saved_parts(
    lines: Sequence[bytes], problems: Sequence[RowProblem], count: int
) -> dict[str, list[float | None]]:
    """The parts that the run wrote, by name; only where every usable line has the same ones."""
    bad = {int(problem.source.rpartition(":")[2]) for problem in problems}
    rows = [json.loads(line).get("parts") or {} for n, line in enumerate(lines, 1) if n not in bad]
    names = list(rows[0]) if rows and all(list(row) == list(rows[0]) for row in rows) else []
    assert len(rows) == count
    return {name: [row[name] for row in rows] for name in names}
