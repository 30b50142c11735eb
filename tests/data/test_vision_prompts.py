"""Rows with pictures: which picture stands where, what is dropped and why, and what the model gets."""

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from lightrft.data.media import Limits
from lightrft.data.multimodal import VisionProcessor, batch_features, engine_media
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.errors import ConfigError, DataError
from lightrft.tools.tiny_vision import FAMILIES, make_random_vlm

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    folder = make_random_vlm(tmp_path_factory.mktemp("vlm") / "model")
    return VisionProcessor(AutoProcessor.from_pretrained(folder))


@pytest.fixture
def images(tmp_path):
    """a.png (56 x 84: 6 tokens) and b.png (28 x 28: one), beside the data."""
    for name, shape in (("a", (56, 84, 3)), ("b", (28, 28, 3))):
        pixels = np.random.default_rng(len(name)).integers(0, 255, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    return tmp_path


def load(processor, path, chat=True, **media):
    options = PromptOptions(apply_chat_template=chat, media=MediaOptions(**media), prompt_max_len=200)
    return load_prompts(str(path), options, processor)


def rows(folder, *values):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


PLACED = [
    ({"input": "x<image>y", "images": ["a.png"]}, f"x{IMAGE}y"),
    ({"input": "xy", "images": ["a.png", "b.png"]}, f"{IMAGE}{IMAGE}xy"),
    ({"input": "xy", "image": "a.png"}, f"{IMAGE}xy"),
    ({"input": "<image2>x<image1>", "images": ["a.png", "b.png"]}, f"{IMAGE}x{IMAGE}"),
    ({"input": "<video>x<image>", "images": ["a.png"], "videos": ["a.png", "a.png"]}, f"{VIDEO}x{IMAGE}"),
]


@pytest.mark.parametrize(("row", "text"), PLACED)
@pytest.mark.parametrize("chat", [True, False])
def test_vision_pictures_stand_where_the_row_says(vision, images, row, text, chat):
    prompt = load(vision, rows(images, row), chat=chat)[0]
    assert prompt.text == (f"<u>{text}<a>" if chat else text)
    tokens = vision.tokenizer.convert_ids_to_tokens(prompt.token_ids)
    count = sum({"a.png": 6, "b.png": 1}[name] for name in np.atleast_1d(row.get("images", row.get("image"))))
    assert tokens.count("<|image_pad|>") == count
    collapsed = vision.tokenizer.decode(prompt.multimodal["prompt_ids"])
    assert collapsed == prompt.text


def test_vision_numbers_say_which_image_and_may_repeat(vision, images):
    text = "<image2>=<image1>=<image2>"
    prompt = load(vision, rows(images, {"input": text, "images": ["a.png", "b.png"]}))[0]
    assert [picture.name for picture in prompt.multimodal["image"]] == ["b.png", "a.png", "b.png"]
    assert vision.features(prompt)["image_grid_thw"].tolist() == [[1, 2, 2], [1, 4, 6], [1, 2, 2]]


def test_vision_chats_with_parts(vision, images):
    own = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "x"}]
    bare = [{"type": "image"}, {"type": "text", "text": "x"}]
    path = rows(
        images,
        {"input": [{"role": "user", "content": own}]},
        {"input": [{"role": "user", "content": bare}], "images": ["a.png"]},
        {"input": [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]},
        {"input": [{"role": "user", "content": [{"type": "hologram"}]}]},
    )
    prompts = load(vision, path)
    assert [p.text for p in prompts] == [f"<u>{IMAGE}x<a>"] * 2
    assert prompts[0].token_ids == prompts[1].token_ids
    assert prompts.report.counts == {"audio": 1, "unusable prompt": 1}
    assert "audio-language rows are not supported" in str(prompts.report)


def test_vision_bad_rows_are_named_counted_and_cost_no_other(vision, images):
    (images / "cut.png").write_bytes((images / "a.png").read_bytes()[:300])
    path = rows(
        images,
        {"input": "good", "images": ["a.png"]},
        {"input": "<image><image>", "images": ["a.png"]},
        {"input": "<image3>", "images": ["a.png"]},
        {"input": "<image>", "images": []},
        {"input": "gone", "images": ["gone.png"]},
        {"input": "cut", "images": ["cut.png"]},
        {"input": "text"},
        {"input": "<|image_pad|>x", "images": ["a.png"]},
        {"input": "many", "images": ["b.png"] * 4},
        {"input": "x", "images": [3]},
        {"input": "x", "audio": "a.wav"},
        {"input": "long" * 50, "images": ["a.png"]},
    )
    prompts = load(vision, path, max_images=3)
    assert [p.source for p in prompts] == [f"{path}:1"]
    assert prompts.report.counts == {
        "image count": 3,
        "cannot be encoded": 3,
        "no image": 1,
        "too many images": 1,
        "unusable image": 1,
        "audio": 1,
        "prompt too long": 1,
    }
    problems = "\n".join(map(str, prompts.report.problems))
    assert f"{path}:2: image count (1 images for 2 <image> places)" in problems
    assert f"{path}:5: cannot be encoded (gone.png: there is no such file)" in problems
    assert f"{path}:6: cannot be encoded (cut.png: a damaged image" in problems
    assert "1 images, and 2 times <|image_pad|> in the prompt" in problems
    assert "4, limit_mm_image_per_prompt is 3" in problems
    assert "images take less with --max_pixels" in problems


def test_vision_text_rows_are_kept_where_the_data_is_mixed_and_are_the_text_paths_own(vision, images):
    path = rows(images, {"input": "xy"}, {"input": "x", "images": ["a.png"]}, {"input": "<|image_pad|>"})
    prompts = load(vision, path, mixed=True)
    assert [bool(p.multimodal) for p in prompts] == [False, True]
    options = PromptOptions(apply_chat_template=True)
    assert load_prompts(str(path), options, vision._text)[0].token_ids == prompts[0].token_ids
    assert vision.features(prompts[0]) == {}
    assert "in the text of a prompt without a image" in str(prompts.report)


def test_vision_features_are_the_processors_own(vision, images):
    prompt = load(vision, rows(images, {"input": "x<image>y", "images": ["a.png"]}))[0]
    image = Image.open(images / "a.png")
    theirs = vision._processor(text=[prompt.text], images=[[image]], return_tensors="pt")
    ours = vision.features(prompt)
    assert prompt.token_ids == theirs["input_ids"][0].tolist()
    assert set(ours) == {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0)
    assert engine_media(prompt.multimodal)["image"][0].tobytes() == image.tobytes()


def test_vision_pixels_are_computed_once_while_there_is_room(images, vision):
    path = rows(images, *({"input": f"{i}", "images": ["a.png"]} for i in range(3)))
    calls = []
    spy = VisionProcessor(vision._processor)
    process, spy._process = spy._process, lambda *a: calls.append(1) or process(*a)
    prompts = load(spy, path)
    first = [spy.features(p) for p in prompts]
    assert len(calls) == 3
    small = VisionProcessor(vision._processor, cache_bytes=1)
    again = [small.features(p) for p in load(small, path)]
    assert len(small._cache) == 1
    for a, b in zip(first, again, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_vision_a_file_that_changed_since_it_was_loaded_is_an_error(images, vision):
    prompt = load(vision, rows(images, {"input": "x", "images": ["a.png"]}))[0]
    Image.new("RGB", (28, 28)).save(images / "a.png")
    with pytest.raises(DataError, match=r"rows.jsonl:1: its images are others"):
        VisionProcessor(vision._processor).features(prompt)


def test_vision_limits_shrink_images_for_trainer_and_engine_alike(images, vision):
    limits = Limits(max_pixels=2 * 28 * 28, unit=vision.unit)
    prompt = load(vision, rows(images, {"input": "x", "images": ["a.png"]}), limits=limits)[0]
    assert prompt.token_ids.count(vision.tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 1
    assert engine_media(prompt.multimodal)["image"][0].size == (28, 28)


def test_vision_the_fingerprint_sees_the_pixels(images, vision):
    path = rows(images, {"input": "x", "images": ["b.png"]})
    first = load(vision, path).fingerprint()
    assert load(vision, path).fingerprint() == first
    Image.new("RGB", (28, 28), (1, 2, 3)).save(images / "b.png")
    assert load(vision, path).fingerprint() != first


def test_vision_a_data_set_with_a_damaged_image_loses_one_row(images, vision, tmp_path):
    data = (images / "a.png").read_bytes()
    values = {
        "input": ["x", "y"],
        "images": [[{"bytes": data, "path": None}], [{"bytes": data[:99], "path": None}]],
    }
    features = datasets.Features(
        {"input": datasets.Value("string"), "images": datasets.List(datasets.Image())}
    )
    datasets.Dataset.from_dict(values, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    prompts = load(vision, tmp_path / "rows.parquet")
    assert [p.text for p in prompts] == [f"<u>{IMAGE}x<a>"]
    assert prompts.report.counts == {"cannot be encoded": 1}


def test_vision_a_batch_pads_token_types_and_joins_the_rest():
    one = {"mm_token_type_ids": torch.tensor([[0, 1]]), "pixel_values": torch.ones(4, 2)}
    two = {"mm_token_type_ids": torch.tensor([[1, 0, 1]]), "pixel_values": torch.zeros(8, 2)}
    right = batch_features([one, {}, two], [2, 1, 3], 4)
    assert right["mm_token_type_ids"].tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    assert right["pixel_values"].shape == (12, 2)
    left = batch_features([one, {}, two], [2, 1, 3], 4, left=True)
    assert left["mm_token_type_ids"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]
    assert batch_features([{}, {}], [2, 2], 3) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_vision_a_filler_is_one_small_picture(tmp_path, family):
    processor = VisionProcessor(AutoProcessor.from_pretrained(make_random_vlm(tmp_path / family, family)))
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        ids, features = processor.filler(kind)
        assert len(ids) == features["mm_token_type_ids"].shape[1] < 60
        assert len(features[pixels]) <= 32


def test_vision_a_chat_without_a_template_is_a_configuration_error(images, vision):
    processor = VisionProcessor(vision._processor)
    template, processor.tokenizer.chat_template = processor.tokenizer.chat_template, None
    try:
        with pytest.raises(ConfigError, match="has no chat template"):
            load(processor, rows(images, {"input": "x", "images": ["a.png"]}))
    finally:
        processor.tokenizer.chat_template = template
