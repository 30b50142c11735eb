"""`--reward model`: a model that has learned to judge whole texts, prompt and response together.

    rollout ─► token ids as the reward model reads them ─► scorer (module or engine) ─► score, or none

The scorer comes later than the reward: rows and flags are checked before any model loads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightrft.errors import DataError, RewardError
from lightrft.rewards.base import ReferenceProblem
from lightrft.rewards.reading import Reader
from lightrft.rewards.rule import to_result
from lightrft.rewards.score import Score, excluded
from lightrft.types import Prompt, RewardResult, Rollout

log = logging.getLogger(__name__)


class Scorer(Protocol):
    """A reward model that is ready to compute. All ranks call it together."""

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Token ids of each text (none is empty) -> its score, not necessarily finite, in their order."""

    def close(self) -> None:
        """End what the scorer has started."""


@dataclass(frozen=True)
class ReadLimits:
    """What a model can read at all. A GPU answers what is beyond with a dead context."""

    vocab_size: int
    max_len: int | None = None  # tokens; None: no limit is known


class ModelReward:
    """The score of a reward model. A text that it cannot read, or without a finite score, is excluded."""

    def __init__(self, name: str, path: str, reader: Reader, limits: ReadLimits) -> None:
        self.name = name
        self.path = path
        self._reader = reader
        self._limits = limits
        self._scorer: Scorer | None = None
        self._has_worked = False

    def start(self, scorer: Scorer) -> None:
        """Score with this from now on."""
        self._scorer = scorer

    def __call__(self, rollouts: Sequence[Rollout]) -> RewardResult:
        """See `Reward`. Collective.

        Raises:
            RewardError: no response of the first rollout gets a score.
        """
        if self._scorer is None:
            raise RuntimeError(f"--reward {self.name} was asked for scores before start()")
        texts = self._reader(rollouts)
        faults = [self._fault(text) for text in texts]
        readable = {i: text for i, text in enumerate(texts) if isinstance(text, list) and not faults[i]}
        values = self._scorer(list(readable.values()))
        scores = [excluded("error") for _ in rollouts]
        for i, value in zip(readable, values, strict=True):
            if math.isfinite(value):
                scores[i] = Score(value)
            else:
                faults[i] = f"the score is {value}"
        self._report([fault for fault in faults if fault], len(rollouts))
        return to_result(scores)

    def _fault(self, text: Sequence[int] | DataError) -> str:
        """Why the model cannot read `text`; "" where it can."""
        if isinstance(text, DataError):
            return str(text)
        if not text:
            return "there is no token to score"
        longest = self._limits.max_len
        if longest is not None and len(text) > longest:
            return f"{len(text)} tokens, and the model was made for {longest}"
        if max(text) >= self._limits.vocab_size:
            return f"token {max(text)}, and its vocabulary ends at {self._limits.vocab_size - 1}"
        return ""

    def _report(self, faults: list[str], total: int) -> None:
        if faults and len(faults) == total and not self._has_worked:
            raise RewardError(
                f"--reward {self.name} ({self.path}) gives none of {total} responses a score: {faults[0]}"
            )
        self._has_worked = self._has_worked or len(faults) < total
        if faults:
            log.warning("--reward %s: %d of %d excluded: %s", self.name, len(faults), total, faults[0])

    def check_references(self, prompts: Sequence[Prompt]) -> list[ReferenceProblem]:
        """None: a model needs no references.

        Raises:
            ConfigError: the model's tokenizer cannot write these prompts.
        """
        self._reader.check(prompts)
        return []

    def close(self) -> None:
        if self._scorer is not None:
            self._scorer.close()
