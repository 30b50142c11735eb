"""What a run would make of its data: rows kept and dropped, lengths, and a prompt as the model sees it.

    python -m lightrft.tools.data_check --pretrain MODEL --prompt_data train.jsonl --eval_data test.jsonl \\
        --apply_chat_template --prompt_max_len 512 --reward gsm8k

Loads the tokenizer and no weights. The flags are those of train.py, and so is every check; `--reward` adds
the rows that it could not grade. Exit status 1 where a row is dropped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightrft.config.resolve import Config
from lightrft.config.rules import files, reward_model
from lightrft.data.processors import Content, Encoded, Processor, TextProcessor
from lightrft.data.prompts import PromptSet
from lightrft.errors import ConfigError, DataError, UserError
from lightrft.models.loading import load_tokenizer
from lightrft.rewards.base import Reward
from lightrft.tools.page import Row, html_table, html_text, text_table, write_page
from lightrft.tools.run_flags import DATA_FLAGS, REWARD_FLAGS, RULES, run_config
from lightrft.trainer.run_data import load_prompt_set, reward_models, run_reward

MODEL_FLAGS = (
    "pretrain",
    "reward_pretrain",
    "trust_remote_code",
    "prompt_max_len",
    "truncate_prompts",
    "eval_data",
)
BINS = 10  # of the histogram, up to prompt_max_len
BAR = 50  # characters of the longest bar
SHOWN_ON_PAGE = 1000
HEADER = ("tokens", "rows", "")


@dataclass
class Measured:
    """A processor that remembers how long each prompt is, also those that are dropped for it."""

    inner: Processor
    lengths: list[int] = field(default_factory=list)

    def encode(self, prompts: Sequence[Content]) -> list[Encoded | DataError]:
        encoded = self.inner.encode(prompts)
        self.lengths += [len(e.token_ids) for e in encoded if isinstance(e, Encoded)]
        return encoded

    def truncate(self, encoded: Encoded, max_len: int) -> Encoded:
        return self.inner.truncate(encoded, max_len)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.inner.decode(token_ids)


def histogram(lengths: Sequence[int], limit: int) -> list[Row]:
    """Rows by length in tokens, in steps of a tenth of `limit`; what is longer stands in a line of its own.

    >>> histogram([1, 5, 5, 12], 10)[0]
    ('1-1', 1, '#########################')
    """
    step = -(-limit // BINS)
    counts: list[tuple[str, int]] = []
    for low in range(0, limit, step):
        high = min(low + step, limit)
        counts.append((f"{low + 1}-{high}", sum(low < length <= high for length in lengths)))
    counts.append((f"over {limit}", sum(length > limit for length in lengths)))
    longest = max((count for _, count in counts), default=0) or 1
    return [(name, count, "#" * -(-BAR * count // longest)) for name, count in counts]


@dataclass(frozen=True)
class Check:
    """One of the two sets, looked at."""

    flag: str
    prompts: PromptSet
    lengths: list[int]
    limit: int

    def summary(self) -> str:
        """Counts, quantiles of the lengths, doubles, what rows carry."""
        ordered = sorted(self.lengths)
        at = [ordered[round(share * (len(ordered) - 1))] for share in (0, 0.5, 0.95, 1)]
        texts = [prompt.text for prompt in self.prompts]
        with_references = sum(bool(prompt.references) for prompt in self.prompts)
        labels = sorted({p.label for p in self.prompts if p.label is not None})
        lines = [
            f"{self.flag}: {self.prompts.report}",
            f"tokens a prompt: shortest {at[0]}, median {at[1]}, 95 % up to {at[2]}, longest {at[3]}; "
            f"--prompt_max_len {self.limit}",
            f"{with_references} of {len(texts)} prompts have a reference; "
            f"{len(texts) - len(set(texts))} repeat an earlier prompt",
        ]
        if labels:
            shown = ", ".join(labels[:10]) + (" …" if len(labels) > 10 else "")
            lines.append(f"{len(labels)} labels: {shown}")
        return "\n".join(lines)

    def preview(self) -> str:
        """The first prompt with everything that the policy and the rewards see of it."""
        prompt = self.prompts[0]
        label = "" if prompt.label is None else f"\nlabel: {prompt.label}"
        head = f"{prompt.source}, {len(prompt.token_ids)} tokens"
        return f"{head}:\n{prompt.text}\nreferences: {prompt.references}{label}"

    def text(self) -> str:
        bars = text_table(HEADER, histogram(self.lengths, self.limit))
        return f"{self.summary()}\n\n{bars}\n\nas the model sees {self.preview()}"

    def sections(self) -> list[tuple[str, str]]:
        """For the page."""
        problems = [(p.source, p.reason, p.detail) for p in self.prompts.report.problems]
        return [
            (self.flag, html_text(self.summary())),
            ("Length", html_table(HEADER, histogram(self.lengths, self.limit))),
            ("As the model sees it", html_text(self.preview())),
            (f"Dropped rows ({len(problems)})",
             html_table(("row", "reason", "detail"), problems[:SHOWN_ON_PAGE])),
        ]  # fmt: skip


def check(config: Config, processor: TextProcessor, with_reward: bool) -> list[Check]:
    """Load `--prompt_data`, and `--eval_data` where it is given, as a run does.

    Raises:
        UserError: whatever would stop the run; under `--strict_data` that is any bad row.
    """
    reward = None
    if with_reward:
        reward = run_reward(config, reward_models(config, processor.tokenizer))
    try:
        found = []
        for flag in ("prompt_data", "eval_data"):
            if config.values[flag]:
                found.append(_check_one(config, processor, reward, flag))
        return found
    finally:
        if reward is not None:
            reward.close()


def _check_one(config: Config, processor: Processor, reward: Reward | None, flag: str) -> Check:
    measured = Measured(processor)
    prompts = load_prompt_set(config, flag, measured, reward)
    return Check(f"--{flag}", prompts, measured.lengths, config.prompt_max_len)


def shared_prompts(checks: Sequence[Check]) -> int:
    """Evaluation prompts that are trained on as well."""
    if len(checks) < 2:
        return 0
    trained = {prompt.text for prompt in checks[0].prompts}
    return sum(prompt.text in trained for prompt in checks[1].prompts)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lightrft.tools.data_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the whole report as a page")
    args, words = parser.parse_known_args(argv)
    try:
        config = _config(words)
        tokenizer = load_tokenizer(config.pretrain, config.trust_remote_code)
        with_reward = not config.given.isdisjoint({"reward", "reward_pretrain"})
        checks = check(config, TextProcessor(tokenizer), with_reward)
    except UserError as error:
        print(f"data_check: error: {error}", file=sys.stderr)
        return error.exit_code
    print("\n\n".join(c.text() for c in checks))
    shared = shared_prompts(checks)
    if shared:
        print(f"\n{shared} prompts of --eval_data are in --prompt_data as well")
    if args.html:
        write_page(args.html, "Data", [section for c in checks for section in c.sections()])
        print(f"wrote {args.html}")
    return int(any(c.prompts.report.problems for c in checks))


def _config(words: Sequence[str]) -> Config:
    """The flags, once the two that no check can do without are there.

    Raises:
        ConfigError: one of them is missing, or see `run_config`.
    """
    given = {word.partition("=")[0] for word in words}
    missing = [flag for flag in ("--pretrain", "--prompt_data") if flag not in given]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} missing: see --help")
    rules = [*RULES, files.model_is_here, *reward_model.RULES]
    return run_config(words, [*MODEL_FLAGS, *DATA_FLAGS, *REWARD_FLAGS], rules)


if __name__ == "__main__":
    sys.exit(main())
