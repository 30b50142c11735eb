"""A prompt with pictures: which picture stands where in its text.

A row says it in one of three ways: markers in the text (`<image>`, `<image2>`, `<video>`) with the pictures
in a column, chat messages whose content is a list of parts, or no marker at all, which puts the pictures
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightrft.data.media import Clip, Limits, Picture, clip_of, media_list, picture_of
from lightrft.errors import DataError

Part = dict[
    str, Any
]  # {"type": "text", "text": …}, {"type": "image", "image": Picture}, {"type": "video", …}

AUDIO_KEYS = ("audio", "audios")
_KINDS = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
_AUDIO_KINDS = ("audio", "audio_url", "input_audio")
_MARKER = re.compile(r"<(image|video)(\d*)>")


class BadRow(Exception):
    """A row that cannot become a prompt: reason (to count by) and detail."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class MediaOptions:
    """What the multimodal flags say. A column that was named by hand must be there."""

    images_key: str = "images"
    videos_key: str = "videos"
    max_images: int = 10  # of a prompt
    mixed: bool = False  # rows without any picture are kept
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Media:
    """The pictures and clips of a row's columns, in order."""

    image: tuple[Picture, ...] = ()
    video: tuple[Clip, ...] = ()


def row_media(values: Mapping[str, Any], options: MediaOptions, folder: Path) -> Media:
    """What the columns of a row hold; paths are relative to `folder`.

    Raises:
        BadRow: a column that was named is missing, holds something else, or there is audio.
    """
    audio = next((key for key in AUDIO_KEYS if media_list(values.get(key))), None)
    if audio is not None:
        raise BadRow("audio", f"column {audio!r}: audio-language rows are not supported")
    images = _column(values, options.images_key, ("images", "image"), options)
    videos = _column(values, options.videos_key, ("videos", "video"), options)
    if videos and _is_one_video(videos):
        videos = [videos]
    try:
        return Media(
            tuple(picture_of(value, folder, options.limits) for value in images),
            tuple(clip_of(value, folder, options.limits) for value in videos),
        )
    except DataError as error:
        raise BadRow("unusable image", str(error)) from error


def _column(
    values: Mapping[str, Any], key: str, usual: tuple[str, str], options: MediaOptions
) -> Sequence[Any]:
    """The entries under `key`; at its default, of the first of `usual` that the row has."""
    if key != usual[0] and key not in values and not options.mixed:
        raise BadRow("missing key", f"no {key!r} (--{usual[0]}_key); it has {', '.join(values)}")
    keys = usual if key == usual[0] else (key,)
    return media_list(next((values[k] for k in keys if values.get(k) is not None), None))


def _is_one_video(entries: Sequence[Any]) -> bool:
    """A flat list of image files is the frames of one video, not several videos of one frame."""
    suffixes = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
    names = [e.get("path") or "" if isinstance(e, Mapping) else e for e in entries]
    return all(hasattr(n, "convert") or (isinstance(n, str) and n.lower().endswith(suffixes)) for n in names)


def join_text(content: Any) -> str:
    """The text of a list of parts, for a model that reads nothing else.

    Raises:
        BadRow: a part is no text.
    """
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type", "text") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise BadRow("unusable prompt", f"a part of type {kind!r}: pictures need train_vl.py")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def bind(
    contents: Sequence[Any], media: Media, options: MediaOptions, folder: Path
) -> list[str | list[Part]]:
    """The contents of a prompt's messages with each picture in its place.

    A content is a text or a list of parts; what has no picture comes back as the text that it was.

    Raises:
        BadRow: pictures and places do not match, there are too many, or a part is of another kind.
    """
    split = [list(_split(content, folder, options.limits)) for content in contents]
    parts = [part for message in split for part in message]
    for kind in ("image", "video"):
        _fill(kind, [p for p in parts if p["type"] == kind], list(getattr(media, kind)), split)
    images = sum(part["type"] == "image" for message in split for part in message)
    if images > options.max_images:
        raise BadRow("too many images", f"{images}, limit_mm_image_per_prompt is {options.max_images}")
    found = any(part["type"] != "text" for message in split for part in message)
    if not found and not options.mixed:
        raise BadRow("no image", "a text-only row: --mixed_mm_data keeps those")
    return [_joined(message) for message in split]


def _split(content: Any, folder: Path, limits: Limits) -> Iterator[Part]:
    """Parts of a content; a picture that has no value yet is `None`, with the number that its marker had."""
    if isinstance(content, str):
        end = 0
        for marker in _MARKER.finditer(content):
            if marker.start() > end:
                yield {"type": "text", "text": content[end : marker.start()]}
            yield {"type": marker[1], marker[1]: None, "number": marker[2]}
            end = marker.end()
        if end < len(content) or not content:
            yield {"type": "text", "text": content[end:]}
        return
    for part in content:
        if isinstance(part, str):
            yield {"type": "text", "text": part}
        elif isinstance(part, Mapping):
            yield _part({k: v for k, v in part.items() if v is not None}, folder, limits)
        else:
            raise BadRow("unusable prompt", f"a part of a message is an object, not {type(part).__name__}")


def _part(part: Mapping[str, Any], folder: Path, limits: Limits) -> Part:
    kind = part.get("type", "text")
    if kind == "text":
        return {"type": "text", "text": str(part.get("text", ""))}
    if kind in _AUDIO_KINDS:
        raise BadRow("audio", f"a part of type {kind!r}: audio-language rows are not supported")
    if kind not in _KINDS:
        raise BadRow("unusable prompt", f"a part of type {kind!r}: use text, image or video")
    own = {k: v for k, v in part.items() if k != "type"}
    name = _KINDS[kind]
    if not own:
        return {"type": name, name: None, "number": ""}
    value = own.get(kind, own)
    try:
        made = picture_of(value, folder, limits) if name == "image" else clip_of(value, folder, limits)
    except DataError as error:
        raise BadRow("unusable image", str(error)) from error
    return {"type": name, name: made}


def _fill(kind: str, places: list[Part], given: list[Any], split: list[list[Part]]) -> None:
    """Put what the columns hold into the places that have no value of their own."""
    empty = [part for part in places if part[kind] is None]
    numbers = [part["number"] for part in empty]
    if given and not places:  # no marker at all: before the text of the last message
        split[-1][:0] = [{"type": kind, kind: value} for value in given]
        return
    if numbers and all(numbers):
        wanted = {int(number) for number in numbers}
        if wanted != set(range(1, len(given) + 1)):
            shown = ", ".join(f"<{kind}{n}>" for n in sorted(wanted))
            raise BadRow(f"{kind} count", f"{len(given)} {kind}s for the markers {shown}")
        values = [given[int(number) - 1] for number in numbers]
    else:
        values = given
    if len(values) != len(empty):
        raise BadRow(f"{kind} count", f"{len(given)} {kind}s for {len(empty)} <{kind}> places")
    for part, value in zip(empty, values, strict=True):
        part[kind] = value


def _joined(parts: list[Part]) -> str | list[Part]:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return [{k: v for k, v in part.items() if k != "number"} for part in parts]
