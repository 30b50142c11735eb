"""`--prompt_data` and `--eval_data`: from rows to `Prompt`s. A bad row is reported and dropped at load."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from lightrft.config.sources import Source, split_sources
from lightrft.data.parts import BadRow
from lightrft.data.processors import Content, Encoded, Processor
from lightrft.data.rows import PromptOptions, draft
from lightrft.data.sources import RowProblem, read_rows
from lightrft.errors import ConfigError, DataError
from lightrft.types import Prompt

SHOWN_PROBLEMS = 5
LISTED_PROBLEMS = 100  # in the error of --strict_data


@dataclass
class DataReport:
    """What became of the rows of a data set."""

    rows: int = 0
    kept: int = 0
    truncated: int = 0
    unused: int = 0  # good rows that a mixture did not reach
    problems: list[RowProblem] = field(default_factory=list)
    noun: str = "prompts"  # what rows become

    @property
    def counts(self) -> Counter[str]:
        """Dropped rows by reason."""
        return Counter(problem.reason for problem in self.problems)

    def __str__(self) -> str:
        lines = [f"{self.rows} rows, {self.kept} {self.noun}"]
        if self.truncated:
            lines[0] += f", {self.truncated} truncated"
        if self.unused:
            lines[0] += f", {self.unused} beyond the mixture"
        if self.problems:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
            lines.append(f"{len(self.problems)} rows dropped: {reasons}")
            lines += [f"  {problem}" for problem in self.problems[:SHOWN_PROBLEMS]]
            if len(self.problems) > SHOWN_PROBLEMS:
                lines.append(f"  … and {len(self.problems) - SHOWN_PROBLEMS} more")
        return "\n".join(lines)


class PromptSet(Sequence[Prompt]):
    """Prompts numbered 0, 1, … by `Prompt.index`, and the report of how they came about."""

    def __init__(self, prompts: Sequence[Prompt], report: DataReport):
        self._prompts = [replace(prompt, index=i) for i, prompt in enumerate(prompts)]
        self.report = replace(report, kept=len(self._prompts))

    def __len__(self) -> int:
        return len(self._prompts)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        return self._prompts[index]

    def fingerprint(self) -> str:
        """A hash of what the policy and the rewards see, in order; the same after the files have moved."""
        digest = hashlib.sha256()
        for prompt in self._prompts:
            seen = [prompt.token_ids, prompt.text, prompt.references, prompt.label]
            seen += [prompt.multimodal["digest"]] if prompt.multimodal else []
            digest.update(json.dumps(seen).encode())
        return digest.hexdigest()[:16]

    def drop(self, reasons: Mapping[int, str], strict: bool = False) -> PromptSet:
        """A set without the prompts whose index is in `reasons`, renumbered; each is reported as a bad row.

        Raises:
            DataError: nothing is left; or `strict` and there is something to drop.
        """
        problems = [
            RowProblem(self._prompts[i].source, "cannot be graded", reason) for i, reason in reasons.items()
        ]
        report = replace(self.report, problems=self.report.problems + problems)
        kept = [prompt for prompt in self._prompts if prompt.index not in reasons]
        return _checked(kept, report, strict and bool(problems), "the data")


def load_prompts(spec: str, options: PromptOptions, processor: Processor) -> PromptSet:
    """Read, check and encode all rows of `spec`: files, saved folders and hub names, separated by commas.

    Sources follow each other in order, or are mixed where `options.data_probs` says how.

    Raises:
        DataError: a source cannot be read; no row is usable; or a row is bad and `strict_data` is on.
        ConfigError: the chat template that the prompts need does not exist.
    """
    sources = split_sources(spec)
    if not sources:
        raise DataError("no data set is named: give files, saved folders or hub names, separated by commas")
    _check_probs(options, sources)
    report = DataReport()
    loaded = [_load_source(source, options, processor, report) for source in sources]
    prompts = [prompt for prompts in loaded for prompt in prompts]
    if options.data_probs is not None:
        mixed = mix(loaded, options.data_probs, options.seed)
        report.unused = len(prompts) - len(mixed)
        prompts = mixed
    return _checked(prompts, report, options.strict_data, spec)


def _check_probs(options: PromptOptions, sources: Sequence[Source]) -> None:
    probs = options.data_probs
    if probs is not None and (len(probs) != len(sources) or min(probs) < 0 or sum(probs) <= 0):
        raise ConfigError(
            f"--prompt_data_probs {','.join(map(str, probs))}: give one probability, 0 or more, for each of "
            f"the {len(sources)} data sets"
        )


def _checked(prompts: list[Prompt], report: DataReport, strict: bool, shown: str) -> PromptSet:
    prompt_set = PromptSet(prompts, report)
    if strict and report.problems:
        listed = "\n".join(f"  {problem}" for problem in report.problems[:LISTED_PROBLEMS])
        raise DataError(f"{shown}: {len(report.problems)} bad rows, and --strict_data is on:\n{listed}")
    if not prompts:
        raise DataError(f"{shown}: no prompt is left: {prompt_set.report}")
    return prompt_set


def mix(sources: Sequence[Sequence[Prompt]], probs: Sequence[float], seed: int) -> list[Prompt]:
    """Draw a source by its probability, take its next prompt, and so on until a drawn source has none left.

    No prompt comes twice, and the shares hold over the whole result.
    """
    rng = random.Random(f"mixture/{seed}")
    following = [iter(source) for source in sources]
    mixed: list[Prompt] = []
    while True:
        prompt = next(rng.choices(following, weights=probs)[0], None)
        if prompt is None:
            return mixed
        mixed.append(prompt)


def _load_source(
    source: Source, options: PromptOptions, processor: Processor, report: DataReport
) -> list[Prompt]:
    rows = read_rows(source, options.split)
    report.rows += len(rows)
    drafts: list[tuple[Prompt, Content]] = []
    for row in rows:
        if isinstance(row, RowProblem):
            report.problems.append(row)
            continue
        try:
            drafts.append(draft(row, options))
        except BadRow as bad:
            report.problems.append(RowProblem(row.source, bad.reason, bad.detail))
    prompts = []
    encodings = processor.encode([chat_or_text for _, chat_or_text in drafts])
    for (prompt, _), encoded in zip(drafts, encodings, strict=True):
        try:
            fitted = _fitted(encoded, options, processor, report)
        except BadRow as bad:
            report.problems.append(RowProblem(prompt.source, bad.reason, bad.detail))
        else:
            prompts.append(
                replace(prompt, token_ids=fitted.token_ids, text=fitted.text, multimodal=fitted.multimodal)
            )
    return prompts


def _fitted(
    encoded: Encoded | DataError, options: PromptOptions, processor: Processor, report: DataReport
) -> Encoded:
    if isinstance(encoded, DataError):
        raise BadRow("cannot be encoded", str(encoded))
    length = len(encoded.token_ids)
    if length == 0:
        raise BadRow("empty prompt")
    if length <= options.prompt_max_len:
        return encoded
    if options.truncate_prompts and not encoded.multimodal:
        report.truncated += 1
        return processor.truncate(encoded, options.prompt_max_len)
    hint = "; images take less with --max_pixels" if encoded.multimodal else ""
    raise BadRow("prompt too long", f"{length} tokens, prompt_max_len is {options.prompt_max_len}{hint}")
