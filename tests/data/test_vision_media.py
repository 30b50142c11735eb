"""Images and videos of every kind that data sets hold: read, or refused in words that name them."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from lightrft.data.media import Limits, clip_of, picture_of
from lightrft.errors import DataError

RED = (200, 30, 30)


def encoded(image, kind="PNG", **how):
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


@pytest.fixture
def red():
    return Image.new("RGB", (40, 20), RED)


def test_vision_images_come_as_path_bytes_base64_url_dict_and_object(red, tmp_path):
    data = encoded(red)
    (tmp_path / "a b.png").write_bytes(data)
    noise = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 40, 3), dtype=np.uint8)))
    text = base64.b64encode(noise).decode()
    same = [
        "a b.png",
        str(tmp_path / "a b.png"),
        (tmp_path / "a b.png").as_uri(),
        tmp_path / "a b.png",
        data,
        {"bytes": data, "path": None},
        {"bytes": None, "path": "a b.png"},
        {"image": "a b.png"},
        {"url": "data:image/png;base64," + base64.b64encode(data).decode()},
        {"image_url": {"url": "a b.png"}},
        red,
    ]
    for value in same:
        image = picture_of(value, tmp_path).image()
        assert (image.size, image.mode, image.getpixel((5, 5))) == ((40, 20), "RGB", RED), value
    assert picture_of(text, tmp_path).bytes() == noise


def test_vision_images_of_other_modes_become_rgb(tmp_path):
    grey16 = Image.fromarray(np.full((4, 4), 257 * 100, dtype=np.uint16))
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    palette = Image.new("RGB", (4, 4), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    cases = {
        (100, 100, 100): encoded(grey16),  # PIL's own conversion would give 255
        (255, 255, 255): encoded(clear),
        RED: encoded(palette),
        (7, 7, 7): encoded(Image.new("L", (4, 4), 7)),
    }
    for expected, data in cases.items():
        assert picture_of(data, tmp_path).image().getpixel((1, 1)) == expected


def test_vision_exif_orientation_is_applied(red, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    assert picture_of(encoded(red, "JPEG", exif=exif), tmp_path).image().size == (20, 40)


def animation():
    frames = [Image.new("RGB", (8, 8), (60 * i, 0, 0)) for i in range(4)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=500)


def cut(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("gone.png", "gone.png: there is no such file"),
        (b"no image", "not an image"),
        (b"", "empty"),
        (cut(encoded(Image.effect_noise((64, 64), 50))), "a damaged image"),
        (animation(), "an animated image of 4 frames: give it as a video"),
        (encoded(Image.new("1", (20_000, 6_000))), "20000 x 6000 pixels, the most is 100 million"),
        ("https://x.org/a.png", "download it"),
        ("data:image/png;base64,????", "not base64"),
        ({"width": 3}, "none of bytes, image"),
        (3, "not a int"),
        ("", "an empty path"),
    ],
    ids=["missing", "text", "empty", "cut", "animated", "huge", "url", "base64", "dict", "number", "nothing"],
)
def test_vision_bad_images_say_what_is_wrong(value, says, tmp_path):
    with pytest.raises(DataError, match=says):
        picture_of(value, tmp_path).image()


@pytest.mark.parametrize(
    ("size", "limits", "expected"),
    [
        ((100, 50), Limits(), (100, 50)),
        ((100, 50), Limits(max_pixels=28 * 28 * 4, unit=28), (56, 28)),  # 79 x 39 -> floor to 28s
        ((1000, 1000), Limits(max_pixels=28 * 28 * 16, unit=28), (112, 112)),
        ((10, 10), Limits(min_pixels=28 * 28 * 4, unit=28), (56, 56)),
        ((60, 60), Limits(min_pixels=1, max_pixels=10**6, unit=28), (56, 56)),
        ((4000, 10), Limits(max_pixels=28 * 28 * 4, unit=28), (1120, 28)),  # a side is never below the unit
    ],
)
def test_vision_limits_give_sides_in_units(size, limits, expected):
    assert limits.size(*size) == expected


def test_vision_limits_are_the_rule_of_qwens_processors():
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    draw = np.random.default_rng(0)
    for _ in range(200):
        width, height = (int(x) for x in draw.integers(28, 600, 2))
        theirs = smart_resize(height, width, factor=28, min_pixels=28 * 28 * 4, max_pixels=28 * 28 * 64)
        assert Limits(28 * 28 * 4, 28 * 28 * 64, 28).size(width, height) == theirs[::-1]


def test_vision_clips_are_frames_or_files(red, tmp_path):
    assert clip_of([red] * 4, tmp_path).images().shape == (4, 20, 40, 3)
    assert clip_of([encoded(red)] * 3, tmp_path).images().shape == (4, 20, 40, 3)  # the last one twice
    assert clip_of(np.zeros((2, 8, 8, 3), np.uint8), tmp_path).images().shape == (2, 8, 8, 3)
    assert clip_of({"video": [red, red]}, tmp_path).images().shape == (2, 20, 40, 3)
    frames = clip_of(animation(), tmp_path).images()
    assert frames.shape == (4, 8, 8, 3)
    assert frames[:, 0, 0, 0].tolist() == pytest.approx([0, 60, 120, 180], abs=8)
    small = Limits(max_pixels=28 * 28, unit=28)
    assert clip_of([red] * 2, tmp_path, small).images().shape == (2, 28, 28, 3)


def test_vision_a_video_file_is_sampled_at_two_frames_a_second(tmp_path):
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "a.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (32, 32))
    for i in range(30):
        writer.write(np.full((32, 32, 3), 8 * i, dtype=np.uint8))
    writer.release()
    frames = clip_of("a.avi", tmp_path).images()
    assert frames.shape == (6, 32, 32, 3)  # three seconds
    assert frames[0].mean() < 10
    assert frames[-1].mean() > 220


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "without frames"),
        (b"no video", "cannot be read as a video"),
        ([Image.new("RGB", (8, 8)), Image.new("RGB", (9, 9))], "frames of different sizes"),
    ],
)
def test_vision_bad_clips_say_what_is_wrong(value, says, tmp_path):
    with pytest.raises(DataError, match=says):
        clip_of(value, tmp_path).images()
