"""Pictures and clips: where a row says they are, and how they become RGB images. A bad one costs its row.

A picture is read twice: at load, to know that it can be, and whenever its pixels are needed. Until then it is
a path or the bytes of its file: a data set's images would not fit into memory otherwise.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import tempfile
import urllib.parse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lightrft.errors import DataError

MOST_PIXELS = 100_000_000  # of a file: more is a scan of a wall, or an attack on the memory
FRAMES_PER_SECOND = 2.0  # of a clip as the policy sees it; all Qwen models were trained at it
MOST_FRAMES = 32  # of a clip; a longer one is sampled more sparsely
VIDEO_READERS = {"torchcodec": "torchcodec", "pyav": "av", "decord": "decord", "opencv": "cv2"}
WHITE = (255, 255, 255)
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


@dataclass(frozen=True)
class Limits:
    """The area that an image is brought to, in pixels; sides become multiples of `unit`."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    unit: int = 1

    def size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) within the limits, of the same shape as near as `unit` allows.

        The rule of Qwen2-VL's processors (arXiv 2409.12191, `smart_resize`), so that they leave the result
        alone.
        """
        if self.min_pixels is None and self.max_pixels is None:
            return width, height
        sides = [max(self.unit, round(side / self.unit) * self.unit) for side in (width, height)]
        if self.max_pixels is not None and sides[0] * sides[1] > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            sides = [max(self.unit, self._down(side / scale)) for side in (width, height)]
        elif self.min_pixels is not None and sides[0] * sides[1] < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            sides = [math.ceil(side * scale / self.unit) * self.unit for side in (width, height)]
        return sides[0], sides[1]

    def _down(self, side: float) -> int:
        return math.floor(side / self.unit) * self.unit


@dataclass(frozen=True)
class Picture:
    """One image: a file, or the bytes of one. `name` is for messages."""

    name: str
    path: Path | None = None
    data: bytes | None = None
    limits: Limits = Limits()

    def bytes(self) -> bytes:
        """The file.

        Raises:
            DataError: it is not there or cannot be read.
        """
        if self.data is not None:
            return self.data
        assert self.path is not None
        try:
            return self.path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(f"{self.name}: there is no such file") from error
        except OSError as error:
            raise DataError(f"{self.name}: cannot be read: {error.strerror or error}") from error

    def image(self) -> Any:
        """A `PIL.Image` in RGB, upright, within the limits.

        Raises:
            DataError: no image, damaged, animated, or of too many pixels.
        """
        image = open_image(self.bytes(), self.name)
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise DataError(f"{self.name}: an animated image of {frames} frames: give it as a video")
        return _resized(_rgb(image, self.name), self.limits)


@dataclass(frozen=True)
class Clip:
    """One video: its frames as pictures, or a file."""

    name: str
    frames: tuple[Picture, ...] = ()
    file: Picture | None = None
    limits: Limits = Limits()

    def bytes(self) -> bytes:
        """The file, or all files of its frames."""
        pictures = self.frames if self.file is None else (self.file,)
        return b"".join(picture.bytes() for picture in pictures)

    def images(self) -> np.ndarray:
        """Frames `[F, H, W, 3]` uint8, an even number of them, `FRAMES_PER_SECOND` apart.

        Frames that a row lists are taken as they are; one of an odd number is shown twice.

        Raises:
            DataError: no video, damaged, or frames of different sizes.
        """
        if self.file is None:
            frames = [np.asarray(picture.image()) for picture in self.frames]
        else:
            frames = _read_frames(self.file, self.limits)
        shapes = sorted({frame.shape[:2] for frame in frames})
        if len(shapes) > 1:
            raise DataError(f"{self.name}: frames of different sizes: {shapes[0]} and {shapes[-1]}")
        if len(frames) % 2:
            frames.append(frames[-1])
        return np.stack(frames)


def clip_metadata(frames: int) -> dict[str, Any]:
    """What processors are told of a clip: nothing is left to be sampled from it."""
    return {
        "fps": FRAMES_PER_SECOND,
        "duration": frames / FRAMES_PER_SECOND,
        "total_num_frames": frames,
        "frames_indices": list(range(frames)),
        "video_backend": "opencv",
    }


def picture_of(value: Any, folder: Path, limits: Limits = Limits()) -> Picture:
    """The picture that a row's value names: a path (relative to `folder`), bytes, base64, a data URL, a PIL
    image, or what data sets and chats wrap those in (`{"bytes": …}`, `{"type": "image_url", …}`).

    Raises:
        DataError: none of those.
    """
    if isinstance(value, Mapping):
        return picture_of(_unwrapped(value), folder, limits)
    if isinstance(value, bytes | bytearray):
        return Picture(f"an image of {len(value)} bytes", data=bytes(value), limits=limits)
    if isinstance(value, Path):
        return _picture_at(str(value), folder, limits)
    if isinstance(value, str):
        return _picture_from_text(value, folder, limits)
    if hasattr(value, "convert") and hasattr(value, "save"):  # a PIL image, without importing PIL
        return Picture("a PIL image", data=to_png(value), limits=limits)
    raise DataError(f"an image is a path, bytes, base64 or an image object, not a {type(value).__name__}")


def clip_of(value: Any, folder: Path, limits: Limits = Limits()) -> Clip:
    """The clip that a row's value names: a list of frames, each as `picture_of` takes it, or one file.

    Raises:
        DataError: none of those.
    """
    if hasattr(value, "tolist") and not isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and "video" in value:
        value = value["video"]
    if isinstance(value, list | tuple | np.ndarray):
        if not len(value):
            raise DataError("a video without frames")
        frames = tuple(picture_of(_frame(frame), folder, limits) for frame in value)
        return Clip(f"a video of {len(frames)} frames", frames=frames, limits=limits)
    file = picture_of(value, folder)
    return Clip(file.name, file=file, limits=limits)


def _frame(value: Any) -> Any:
    """A frame of an array of frames as an image object; anything else as it is."""
    if isinstance(value, np.ndarray) and value.ndim == 3:
        from PIL import Image

        return Image.fromarray(value)
    return value


def _unwrapped(value: Mapping[str, Any]) -> Any:
    for key in ("bytes", "image", "image_url", "url", "video", "video_url", "base64", "path"):
        if value.get(key) is not None:
            return value[key]
    raise DataError(f"an image with none of bytes, image, url, path; it has {', '.join(map(str, value))}")


def _picture_from_text(text: str, folder: Path, limits: Limits) -> Picture:
    if text.startswith("data:"):
        head, _, body = text.partition(",")
        return Picture(f"{head[:40]},…", data=_base64(body, "a data URL"), limits=limits)
    if text.startswith(("http://", "https://", "s3://", "gs://")):
        raise DataError(f"{text[:80]}: is not fetched while training: download it and give its path")
    if text.startswith("file://"):
        text = urllib.parse.unquote(urllib.parse.urlparse(text).path)
    # Base64 of the smallest image is longer than any file name, and has no dot.
    if len(text) > 200 and "." not in text[:200]:
        return Picture(f"base64 {text[:16]}…", data=_base64(text, "base64"), limits=limits)
    return _picture_at(text, folder, limits)


def _picture_at(text: str, folder: Path, limits: Limits) -> Picture:
    if not text.strip():
        raise DataError("an empty path")
    path = Path(text).expanduser()
    return Picture(text, path=path if path.is_absolute() else folder / path, limits=limits)


def _base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{name}: not base64: {error}") from error


def to_png(image: Any) -> bytes:
    """The file of a PIL image."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def open_image(data: bytes, name: str) -> Any:
    """A `PIL.Image`, its header read and its size in bounds.

    Raises:
        DataError: no image, or of too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise DataError(f"{name}: the image is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is an error, and says more
            image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: not an image") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: cannot be read as an image: {error}") from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise DataError(f"{name}: {width} x {height} pixels, the most is {MOST_PIXELS // 10**6} million")
    return image


def _rgb(image: Any, name: str) -> Any:
    """Upright and in RGB: what is transparent becomes white, 16 bits become 8."""
    from PIL import Image, ImageOps

    try:
        image = ImageOps.exif_transpose(image)
        if image.mode in _DEEP:
            image = _to_8_bits(image)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            ground = Image.new("RGBA", image.size, (*WHITE, 255))
            image = Image.alpha_composite(ground, image)
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, MemoryError) as error:  # damaged: found while decoding
        raise DataError(f"{name}: a damaged image: {error}") from error


def _to_8_bits(image: Any) -> Any:
    """PIL's own conversion clips at 255 what has 16 bits. Floats and 32 bits are spread over their range."""
    from PIL import Image

    values = np.asarray(image).astype(np.float64)
    if image.mode.startswith("I;16") or (image.mode == "I" and 255 < values.max() <= 65535):
        return Image.fromarray((values / 257).round().astype(np.uint8))
    low, high = float(values.min()), float(values.max())
    if image.mode == "I" and low >= 0 and high <= 255:
        return Image.fromarray(values.astype(np.uint8))
    return Image.fromarray(((values - low) / max(high - low, 1e-12) * 255).round().astype(np.uint8))


def _resized(image: Any, limits: Limits) -> Any:
    from PIL import Image

    size = limits.size(*image.size)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


def _read_frames(file: Picture, limits: Limits) -> list[np.ndarray]:
    """At most `MOST_FRAMES` frames of a video file or an animated image, about half a second apart."""
    from PIL import Image

    try:
        frames = _animation(open_image(file.bytes(), file.name), file.name)
    except DataError:
        frames = _video(file)
    return [np.asarray(_resized(Image.fromarray(frame), limits)) for frame in frames]


def _animation(image: Any, name: str) -> list[np.ndarray]:
    from PIL import ImageSequence

    seconds, shown = 0.0, -1.0
    frames: list[np.ndarray] = []
    for frame in ImageSequence.Iterator(image):
        if seconds - shown >= 1 / FRAMES_PER_SECOND - 1e-6 or not frames:
            frames.append(np.asarray(_rgb(frame.copy(), name)))
            shown = seconds
        seconds += frame.info.get("duration", 100) / 1000
    return [frames[i] for i in _spread(len(frames), len(frames) / FRAMES_PER_SECOND)]


def _video(file: Picture) -> list[np.ndarray]:
    from transformers.video_utils import load_video

    backend = next((name for name, module in VIDEO_READERS.items() if find_spec(module)), None)
    if backend is None:
        modules = ", ".join(VIDEO_READERS.values())
        raise DataError(f"{file.name}: no package reads video files: pip install av (or one of {modules})")
    with tempfile.NamedTemporaryFile(suffix=Path(file.name).suffix or ".mp4") as copy:
        copy.write(file.bytes())
        copy.flush()
        try:
            read: Any = load_video
            frames, _ = read(copy.name, backend=backend, sample_indices_fn=_sampled)
        except Exception as error:  # each reader raises kinds of its own
            raise DataError(f"{file.name}: cannot be read as a video: {error}") from error
    if not len(frames):
        raise DataError(f"{file.name}: a video without frames")
    return list(np.asarray(frames))


def _sampled(metadata: Any, **kwargs: Any) -> np.ndarray:
    total = int(metadata.total_num_frames)
    if total < 1:
        raise ValueError("no frames")
    return np.array(_spread(total, total / float(metadata.fps or FRAMES_PER_SECOND)))


def _spread(total: int, seconds: float) -> list[int]:
    """Indices of the frames to keep of `total` over `seconds`."""
    count = min(total, MOST_FRAMES, max(2, round(seconds * FRAMES_PER_SECOND)))
    return np.linspace(0, total - 1, count).round().astype(int).tolist()


def media_list(value: Any) -> Sequence[Any]:
    """What a row has under `--images_key` or `--videos_key`, as a list: one entry, several, or none."""
    if hasattr(value, "tolist") and not isinstance(value, bytes | bytearray):
        value = value.tolist()
    if value is None or (isinstance(value, str) and not value):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
