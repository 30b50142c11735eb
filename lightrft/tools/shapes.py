"""The material of the vision quick start: drawn shapes to count, and a tiny model that can half count them.

An image holds one to six shapes of one kind and colour on a grid. The model, a random Qwen2.5-VL, is warmed
up by supervised steps that end as soon as a third of its samples are right: it looks at the image by then and
is still often wrong. Reinforcement learning finds groups with right and wrong answers from the first step on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from lightrft.errors import ConfigError
from lightrft.tools.make_tiny import ASSISTANT
from lightrft.tools.tiny_vision import make_processor, make_vision_tokenizer, make_vlm, save_vlm

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 200, 40),
    "black": (20, 20, 20),
    "purple": (150, 50, 170),
}
KINDS = ("circle", "square", "triangle")
GRID, SIDE = 4, 112  # cells in a row; pixels of an image's side, four visual tokens
MOST = 6
QUESTION = "count?"
BATCH = 64
LR_WARMUP = 20  # steps
IGNORED = -100  # the label that cross-entropy skips
EVERY, PROBE = 10, 100  # how often the pass rate is looked at, and on how many training images
DRAWS_PER_ROW = 50  # after so many repeats there are no new drawings to be had


@dataclass(frozen=True)
class Drawing:
    """What is on an image: shapes of one kind and colour in some cells of the grid."""

    color: str
    kind: str
    cells: tuple[int, ...]

    @property
    def answer(self) -> str:
        return str(len(self.cells))


@dataclass(frozen=True)
class ShapesOptions:
    """How the material is made. Every field is a flag of the same name."""

    until: float = 0.33  # share of right samples, on images of the training set, that ends the warm-up
    steps: int = 400  # supervised steps at most
    hidden: int = 128  # width; a multiple of 64
    layers: int = 3
    width: int = 96  # of the vision tower; a multiple of 32
    depth: int = 2  # of the vision tower
    lr: float = 2e-3
    seed: int = 0
    train_rows: int = 1800
    eval_rows: int = 200


def draw_specs(rows: int, draw: random.Random, taken: Iterable[Drawing] = ()) -> list[Drawing]:
    """`rows` drawings, no two the same and none of `taken`."""
    found: dict[Drawing, None] = {}
    seen = set(taken)
    for _ in range(DRAWS_PER_ROW * rows):
        if len(found) == rows:
            break
        cells = tuple(sorted(draw.sample(range(GRID * GRID), draw.randint(1, MOST))))
        drawing = Drawing(draw.choice(list(COLORS)), draw.choice(KINDS), cells)
        if drawing not in seen:
            found[drawing] = None
    if len(found) < rows:
        raise ConfigError(f"{rows} rows: only {len(found)} different drawings were found; ask for fewer")
    return list(found)


def paint(drawing: Drawing, draw: random.Random) -> Image.Image:
    """The image of a drawing, `SIDE` pixels square; sizes and the pale ground are left to chance."""
    image = Image.new("RGB", (SIDE, SIDE), tuple(draw.randint(215, 255) for _ in range(3)))
    pen, cell = ImageDraw.Draw(image), SIDE // GRID
    for spot in drawing.cells:
        x, y = spot % GRID * cell + cell // 2, spot // GRID * cell + cell // 2
        r = draw.randint(cell // 4, cell * 3 // 7)
        box = (x - r, y - r, x + r, y + r)
        if drawing.kind == "circle":
            pen.ellipse(box, fill=COLORS[drawing.color])
        elif drawing.kind == "square":
            pen.rectangle(box, fill=COLORS[drawing.color])
        else:
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=COLORS[drawing.color])
    return image


class Encoder:
    """Images and answers -> what the model takes, by the model's own processor and chat template."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        chat = [{"role": "user", "content": content}]
        self._prompt = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        self._marker = processor.tokenizer.convert_tokens_to_ids(ASSISTANT)

    def prompts(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Questions about `images`, `[B, T]` each, with their pixels."""
        return self._encode(images, [self._prompt] * len(images))

    def lessons(self, images: Sequence[Image.Image], answers: Sequence[str]) -> dict[str, Tensor]:
        """Questions with answers, `[B, T]` each; labels on the answer and its end only."""
        end = self.processor.tokenizer.eos_token
        batch = self._encode(images, [f"{self._prompt}{answer}{end}" for answer in answers])
        ids = batch["input_ids"]
        behind = (ids == self._marker).cumsum(1) - (ids == self._marker).int() > 0
        taught = behind & batch["attention_mask"].bool()
        return batch | {"labels": ids.masked_fill(~taught, IGNORED)}

    def _encode(self, images: Sequence[Image.Image], texts: list[str]) -> dict[str, Tensor]:
        return dict(
            self.processor(
                text=texts,
                images=list(images),
                padding=True,
                return_tensors="pt",
                add_special_tokens=False,
                return_mm_token_type_ids=True,
            )
        )


@torch.no_grad()
def pass_rate(
    model: Any, tokenizer: Any, batch: dict[str, Tensor], answers: Sequence[str], sample: bool
) -> float:
    """Share of `answers` found, greedily or sampled at temperature 1; `batch` holds the questions."""
    how: dict[str, Any] = {"do_sample": True, "top_k": 0} if sample else {"do_sample": False}
    out = model.generate(**batch, max_new_tokens=4, **how)[:, batch["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    return sum(text == answer for text, answer in zip(texts, answers, strict=True)) / len(answers)


def warm_up(
    model: Any, encoder: Encoder, train: Sequence[tuple[Image.Image, str]], options: ShapesOptions
) -> None:
    """Supervised steps on `train`, with progress, until enough samples are right."""
    draw, tokenizer = random.Random(options.seed), encoder.processor.tokenizer
    images, answers = zip(*train[:PROBE], strict=True)
    probe = encoder.prompts(images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=True)
    began = time.monotonic()
    for step in range(1, options.steps + 1):
        seen, right = zip(*draw.choices(train, k=BATCH), strict=True)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / LR_WARMUP)
        loss = model(**encoder.lessons(seen, right)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % EVERY and step != options.steps:
            continue
        model.eval()
        sampled = pass_rate(model, tokenizer, probe, answers, sample=True)
        model.train()
        seconds = time.monotonic() - began
        print(f"step {step} loss {loss.item():.3f} sampled {sampled:.3f} {seconds:.0f} s", flush=True)
        if sampled >= options.until:
            return


def make_shapes(out: Path, options: ShapesOptions) -> tuple[float, float]:
    """Write the model to `out`, and `train.jsonl`, `eval.jsonl`, `images/` beside it.

    Returns the (greedy, sampled) pass rates on held-out images. The same for a seed, on the same machine.
    """
    draw = random.Random(options.seed)
    held_out = draw_specs(options.eval_rows, draw)
    train = draw_specs(options.train_rows, draw, taken=held_out)
    sets = {
        name: [(paint(drawing, draw), drawing.answer) for drawing in drawings]
        for name, drawings in (("train", train), ("eval", held_out))
    }
    torch.manual_seed(options.seed)
    processor = make_processor("qwen2_5_vl", make_vision_tokenizer(), max_pixels=SIDE * SIDE)
    model = make_vlm(
        "qwen2_5_vl",
        processor.tokenizer,
        hidden=options.hidden,
        layers=options.layers,
        width=options.width,
        depth=options.depth,
    )
    size = sum(p.numel() for p in model.parameters())
    print(f"a Qwen2.5-VL of {size / 1e6:.2f}M parameters looks at {len(train)} images", flush=True)
    encoder = Encoder(processor)
    warm_up(model, encoder, sets["train"], options)
    save_vlm(model, processor, out)
    for name, rows in sets.items():
        write_rows(out.parent, name, rows)
    images, answers = zip(*sets["eval"], strict=True)
    exam = encoder.prompts(images)
    model.eval()
    greedy, sampled = (
        pass_rate(model, processor.tokenizer, exam, answers, sample) for sample in (False, True)
    )
    print(f"on held-out images: greedy {greedy:.3f} sampled {sampled:.3f}", flush=True)
    return greedy, sampled


def write_rows(folder: Path, name: str, rows: Sequence[tuple[Image.Image, str]]) -> None:
    """One JSON object a line, as a user's own data, and the images that they name beside it."""
    (folder / "images" / name).mkdir(parents=True, exist_ok=True)
    lines = []
    for i, (image, answer) in enumerate(rows):
        path = f"images/{name}/{i:04d}.png"
        image.save(folder / path)
        lines.append(
            json.dumps({"input": f"<image>{QUESTION}", "images": [path], "reference": answer}) + "\n"
        )
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def add_command(commands: Any) -> None:
    """Add `shapes` and its flags to the subparsers of `make_tiny`."""
    parser = commands.add_parser("shapes", help="the vision quick start's model and data", allow_abbrev=False)
    parser.add_argument("out", type=Path, help="folder for the model; its data goes beside it")
    for option in fields(ShapesOptions):
        parser.add_argument(f"--{option.name}", type=type(option.default), default=option.default)


def run(args: argparse.Namespace) -> None:
    """Carry out a parsed `shapes` command."""
    make_shapes(args.out, ShapesOptions(**{f.name: getattr(args, f.name) for f in fields(ShapesOptions)}))
    print(f"wrote {args.out}, and train.jsonl, eval.jsonl, images/ in {args.out.parent}")
