"""The vision quick start's material: what is drawn is what is asked, and no question is asked twice."""

import json
import random
from itertools import combinations

import pytest
from PIL import Image

from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.errors import ConfigError
from lightrft.models.loading import load_processor
from lightrft.tools import shapes
from lightrft.tools.make_tiny import main
from lightrft.tools.shapes import COLORS, KINDS, MOST, Drawing, draw_specs, paint


def test_vision_drawings_differ_and_held_out_ones_are_not_trained_on():
    draw = random.Random(0)
    held_out = draw_specs(50, draw)
    train = draw_specs(300, draw, taken=held_out)
    assert len(set(train) | set(held_out)) == 350
    assert {d.answer for d in train} == {str(n) for n in range(1, MOST + 1)}
    with pytest.raises(ConfigError, match="3 rows: only 0 different drawings were found"):
        draw_specs(3, draw, taken=every_drawing())


def every_drawing():
    for count in range(1, MOST + 1):
        for cells in combinations(range(16), count):
            yield from (Drawing(color, kind, cells) for color in COLORS for kind in KINDS)


def test_vision_an_image_shows_its_shapes_where_they_are_said_to_be():
    image = paint(Drawing("red", "square", (0, 15)), random.Random(1))
    centres = {(x, y): image.getpixel((14 + 28 * x, 14 + 28 * y)) for x in range(4) for y in range(4)}
    assert [spot for spot, pixel in centres.items() if pixel == COLORS["red"]] == [(0, 0), (3, 3)]


def test_vision_warm_up_ends_when_enough_samples_are_right(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shapes, "EVERY", 1)
    sizes = ["--steps", "9", "--train_rows", "12", "--eval_rows", "6", "--layers", "1"]
    main(["shapes", str(tmp_path / "model"), *sizes, "--until", "0"])
    said = capsys.readouterr().out
    assert "step 1 loss" in said
    assert "step 2 loss" not in said


def test_vision_material_is_a_model_and_rows_that_load(tmp_path, capsys):
    sizes = ["--steps", "1", "--train_rows", "12", "--eval_rows", "6", "--layers", "1"]
    main(["shapes", str(tmp_path / "model"), *sizes])
    assert "step 1 loss" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert Image.open(tmp_path / rows[0]["images"][0]).size == (112, 112)
    processor = VisionProcessor(load_processor(str(tmp_path / "model")))
    options = PromptOptions(apply_chat_template=True, media=MediaOptions(), prompt_max_len=48)
    prompts = load_prompts(str(tmp_path / "eval.jsonl"), options, processor)
    assert len(prompts) == 6
    assert all(len(p.multimodal["image"]) == 1 and p.references[0] in "123456" for p in prompts)
