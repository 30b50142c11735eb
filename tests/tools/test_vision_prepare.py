"""Data sets with images become lines and files that a vision run reads."""

import io
import json

import datasets
import pytest
from PIL import Image

from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.models.loading import load_processor
from lightrft.tools.prepare_vision import main
from lightrft.tools.tiny_vision import make_random_vlm


def png(color, size=(56, 28)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def geometry(tmp_path, monkeypatch):
    """A made-up set in the form of Geometry3K: images, problem, answer; the third image is damaged."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pictures = [png("red"), png("blue"), png("green")[:40], png("white")]
    values = {
        "images": [[{"bytes": data, "path": None}] for data in pictures],
        "problem": ["<image>Find x.", "<image>Find y.", "<image>?", "<image>Find z."],
        "answer": ["5", r"2 \sqrt{3}", "1", ""],
    }
    features = datasets.Features(
        {
            "images": datasets.List(datasets.Image()),
            "problem": datasets.Value("string"),
            "answer": datasets.Value("string"),
        }
    )
    path = tmp_path / "set" / "train.parquet"
    path.parent.mkdir()
    datasets.Dataset.from_dict(values, features=features).to_parquet(str(path))
    return path


def test_vision_a_geometry_set_is_prepared_and_loads(geometry, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(geometry), str(out)]) == 0
    said = capsys.readouterr().out
    assert f"wrote {out}/train.jsonl: 2 rows, 2 left out" in said
    assert "train.parquet:3: unusable" in said
    assert "no 'answer'" in said
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert rows[0] == {"input": "<image>Find x.", "images": ["images/train_000000_0.png"], "reference": "5"}
    processor = VisionProcessor(load_processor(str(make_random_vlm(tmp_path / "model"))))
    options = PromptOptions(apply_chat_template=True, media=MediaOptions())
    prompts = load_prompts(str(out / "train.jsonl"), options, processor)
    assert [p.references for p in prompts] == [["5"], [r"2 \sqrt{3}"]]
    assert prompts[1].multimodal["image"][0].image().getpixel((3, 3)) == (0, 0, 255)


def test_vision_choices_are_written_below_the_question(tmp_path):
    (tmp_path / "a.png").write_bytes(png("red"))
    rows = [
        {"question": "How many?", "image": "a.png", "options": ["3", "4"], "answer": "B"},
        {"question": "Which?", "image": "a.png", "options": ["(A)", "(B)"], "answer": "A"},
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ["--problem_key", "question", "--images_key", "image", "--options_key", "options"]
    assert main([str(source), str(tmp_path / "out"), "--split", "test", *keys]) == 0
    lines = (tmp_path / "out" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["input"] for line in lines] == ["How many?\n(A) 3\n(B) 4", "Which?"]


def test_vision_a_source_that_is_not_there_is_one_message(tmp_path, capsys):
    assert main([str(tmp_path / "gone.jsonl"), str(tmp_path / "out")]) == 2
    assert "there is no such file" in capsys.readouterr().err
