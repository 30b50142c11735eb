"""The material of the quick start: a tiny model that has half learnt addition, and problems to train it on.

It is warmed up by supervised steps in which half of the answers are wrong by a little, so that the right
answer is only the likeliest of several. Reinforcement learning has something to sharpen then: groups with
right and wrong answers, from the first step on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lightrft.errors import ConfigError
from lightrft.tools.make_tiny import make_model, make_tokenizer, save

Problem = tuple[int, int]

HEADS = 4
BATCH = 96
LR_WARMUP = 50  # steps
# What a wrong answer is off by: a slip in the units, in the tens, or in both.
SLIPS = (-11, -10, -9, -2, -1, 1, 2, 9, 10, 11)
IGNORED = -100  # the label that cross-entropy skips
REPORTS = 6


@dataclass(frozen=True)
class AdderOptions:
    """How the adder is made. Every field is a flag of the same name."""

    top: int = 30  # largest operand
    steps: int = 900  # supervised steps
    noise: float = 0.5  # share of wrong answers in them
    hidden: int = 128  # width; a multiple of 128
    layers: int = 2
    lr: float = 2e-3
    seed: int = 0
    train_rows: int = 4000
    eval_rows: int = 200


def question(problem: Problem) -> str:
    """`(12, 7)` -> `12+7=`."""
    return f"{problem[0]}+{problem[1]}="


def split_problems(top: int, eval_rows: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """All sums of two numbers up to `top` -> (for training, held out), both shuffled.

    A sum is held out together with its mirror image: who has seen 7+12 has seen 12+7.
    """
    pairs = [(a, b) for a in range(top + 1) for b in range(a, top + 1)]
    random.Random(seed).shuffle(pairs)
    held_out: list[Problem] = []
    while pairs and len(held_out) < eval_rows:
        held_out += _both_orders(pairs.pop())
    train = [problem for pair in pairs for problem in _both_orders(pair)]
    if len(train) < len(held_out):
        raise ConfigError(
            f"--eval_rows {eval_rows} with --top {top}: at most half of the {(top + 1) ** 2} sums may be "
            f"held out; use --eval_rows {(top + 1) ** 2 // 2 - 1} or a larger --top"
        )
    random.Random(seed + 1).shuffle(train)
    return train, held_out[:eval_rows]


def _both_orders(pair: Problem) -> list[Problem]:
    a, b = pair
    return [(a, b)] if a == b else [(a, b), (b, a)]


class Encoder:
    """Problems -> token tensors. Each question and each number is tokenized once."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, top: int) -> None:
        chat = [{"role": "user", "content": "{}"}]
        template = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        self._prompts = {
            (a, b): tokenizer.encode(template.replace("{}", question((a, b))), add_special_tokens=False)
            for a in range(top + 1)
            for b in range(top + 1)
        }
        self._answers = {
            n: [*tokenizer.encode(str(n), add_special_tokens=False), tokenizer.eos_token_id]
            for n in range(2 * top + max(SLIPS) + 1)
        }
        self._pad = tokenizer.pad_token_id

    def prompts(self, problems: list[Problem]) -> dict[str, Tensor]:
        """Left-padded questions, `[B, T]` each."""
        rows = [self._prompts[p] for p in problems]
        width = max(map(len, rows))
        return {
            "input_ids": torch.tensor([[self._pad] * (width - len(r)) + r for r in rows]),
            "attention_mask": torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows]),
        }

    def lessons(self, problems: list[Problem], answers: list[int]) -> dict[str, Tensor]:
        """Right-padded questions with answers, `[B, T]` each; labels on the answer and its end only."""
        rows = [(self._prompts[p], self._answers[n]) for p, n in zip(problems, answers, strict=True)]
        width = max(len(q) + len(a) for q, a in rows)
        ids, mask, labels = [], [], []
        for q, a in rows:
            spare = width - len(q) - len(a)
            ids.append(q + a + [self._pad] * spare)
            mask.append([1] * (width - spare) + [0] * spare)
            labels.append([IGNORED] * len(q) + a + [IGNORED] * spare)
        return {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.tensor(mask),
            "labels": torch.tensor(labels),
        }


def noisy_answers(problems: list[Problem], noise: float, draw: random.Random) -> list[int]:
    """One answer for each problem, of which a share `noise` slips."""
    slips = [draw.choice(SLIPS) if draw.random() < noise else 0 for _ in problems]
    return [max(0, a + b + slip) for (a, b), slip in zip(problems, slips, strict=True)]


@torch.no_grad()
def pass_rate(
    model: Any,  # transformers' own types refuse its generate()
    tokenizer: PreTrainedTokenizerFast,
    batch: dict[str, Tensor],
    problems: list[Problem],
    sample: bool,
) -> float:
    """Share of `problems` solved, greedily or sampled at temperature 1; `batch` holds their questions."""
    how: dict[str, Any] = {"do_sample": True, "top_k": 0} if sample else {"do_sample": False}
    out = model.generate(**batch, max_new_tokens=5, **how)[:, batch["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    return sum(text == str(a + b) for text, (a, b) in zip(texts, problems, strict=True)) / len(problems)


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    train: list[Problem],
    held_out: list[Problem],
    options: AdderOptions,
) -> tuple[float, float]:
    """Supervised steps on noisy answers, with progress. Returns the held-out (greedy, sampled) pass rates."""
    encoder, draw = Encoder(tokenizer, options.top), random.Random(options.seed)
    exam = encoder.prompts(held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=True)
    began, every, scores = time.monotonic(), max(1, options.steps // REPORTS), (0.0, 0.0)
    for step in range(1, options.steps + 1):
        problems = draw.choices(train, k=BATCH)
        lessons = encoder.lessons(problems, noisy_answers(problems, options.noise, draw))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / LR_WARMUP)
        loss = model(**lessons).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % every == 0 or step == options.steps:
            model.eval()
            scores = (
                pass_rate(model, tokenizer, exam, held_out, sample=False),
                pass_rate(model, tokenizer, exam, held_out, sample=True),
            )
            model.train()
            print(
                f"step {step}/{options.steps} loss {loss.item():.3f} greedy {scores[0]:.3f} "
                f"sampled {scores[1]:.3f} {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return scores


def make_adder(out: Path, options: AdderOptions) -> tuple[float, float]:
    """Write the model to `out` and `train.jsonl`, `eval.jsonl` beside it; returns (greedy, sampled).

    The same for a seed, on the same machine.
    """
    train, held_out = split_problems(options.top, options.eval_rows, options.seed)
    torch.set_num_threads(1)  # threads of so small a model only wait for each other
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer("chars")
    model = make_model(tokenizer, options.hidden, options.layers, HEADS)
    size = sum(p.numel() for p in model.parameters())
    print(
        f"a Llama of {size / 1e6:.2f}M parameters learns a+b up to {options.top}, "
        f"{options.noise:.0%} of the answers wrong on purpose",
        flush=True,
    )
    scores = warm_up(model, tokenizer, train, held_out, options)
    save(model, tokenizer, out)
    repeats = -(-options.train_rows // len(train))
    write_rows(out.parent / "train.jsonl", (train * repeats)[: options.train_rows])
    write_rows(out.parent / "eval.jsonl", held_out)
    return scores


def write_rows(path: Path, problems: list[Problem]) -> None:
    """One JSON object a line, as a user's own data: `{"input": "12+7=", "reference": "19"}`."""
    rows = [json.dumps({"input": question(p), "reference": str(sum(p))}) + "\n" for p in problems]
    path.write_text("".join(rows), encoding="utf-8")


def add_command(commands: Any) -> None:
    """Add `adder` and its flags to the subparsers of `make_tiny`."""
    parser = commands.add_parser("adder", help="the quick start's model and data", allow_abbrev=False)
    parser.add_argument(
        "out", type=Path, help="folder for the model; train.jsonl and eval.jsonl go beside it"
    )
    for option in fields(AdderOptions):
        parser.add_argument(f"--{option.name}", type=type(option.default), default=option.default)


def run(args: argparse.Namespace) -> None:
    """Carry out a parsed `adder` command."""
    options = AdderOptions(**{f.name: getattr(args, f.name) for f in fields(AdderOptions)})
    make_adder(args.out, options)
    print(f"wrote {args.out}, {args.out.parent / 'train.jsonl'}, {args.out.parent / 'eval.jsonl'}")
