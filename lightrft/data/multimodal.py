"""Prompts with pictures, encoded by the model's own processor; and what its forward takes of them.

      row ─► parts.py: which picture where ─► VisionProcessor.encode ─► Prompt(token_ids, text, multimodal)
                                                                                          │
      micro-batch ◄─ batch_features ◄─ VisionProcessor.features(prompt): once per prompt ─┘

`Prompt.multimodal` holds files and paths, not pixels:

    image, video   the pictures and clips, in the order of their places
    prompt_ids     token ids with one placeholder for each, as inference engines take them
    digest         a hash of the files
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightrft.data.media import Clip, Picture, clip_metadata, to_png
from lightrft.data.processors import Content, Encoded, TextProcessor
from lightrft.errors import ConfigError, DataError
from lightrft.types import Prompt

CACHE_BYTES = 4 << 30  # of pixels that are kept on the host, so that a prompt is preprocessed once
ALIGNED = "token_type_ids"  # features that end so have a value for each token
GREY = (128, 128, 128)
_NOT_FEATURES = ("input_ids", "attention_mask", "video_metadata")


class VisionProcessor:
    """A model's `AutoProcessor`, and the text path for prompts without pictures.

    Every image is looked at when it is encoded, so that a damaged one is found at load.
    """

    def __init__(self, processor: Any, cache_bytes: int = CACHE_BYTES) -> None:
        self._processor = processor
        self.tokenizer = processor.tokenizer
        if not self.tokenizer.chat_template:
            self.tokenizer.chat_template = getattr(processor, "chat_template", None)
        self._text = TextProcessor(self.tokenizer)
        self._places = {
            kind: getattr(processor, f"{kind}_token", None) or f"<{kind}>" for kind in ("image", "video")
        }
        self._inserted = {kind: self._insertion(kind) for kind in self._places}
        self._cache: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self._cache_bytes, self._cached_bytes = cache_bytes, 0

    @property
    def unit(self) -> int:
        """Sides of images are rounded to multiples of this many pixels; 1 where the model does not say."""
        images = self._processor.image_processor
        patch, merge = getattr(images, "patch_size", None), getattr(images, "merge_size", None)
        return patch * merge if isinstance(patch, int) and isinstance(merge, int) else 1

    def encode(self, prompts: Sequence[Content]) -> list[Encoded | DataError]:
        texts = iter(self._text.encode([p for p in prompts if not _media(p)]))
        return [self._encode_or_error(p) if _media(p) else self._checked(next(texts)) for p in prompts]

    def truncate(self, encoded: Encoded, max_len: int) -> Encoded:
        return self._text.truncate(encoded, max_len)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._text.decode(token_ids)

    def features(self, prompt: Prompt) -> dict[str, Tensor]:
        """Pixels, grids and token types of the prompt's pictures, computed once while the cache has room.

        A feature whose name ends in `token_type_ids` is `[1, prompt tokens]`; any other belongs to the
        pictures and is concatenated over prompts along its first dimension.

        Raises:
            DataError: a file has changed since it was loaded.
        """
        if not prompt.multimodal:
            return {}
        key = _key(prompt.text, prompt.multimodal["digest"])
        if key not in self._cache:
            ids, features = self._process(prompt.text, prompt.multimodal)
            if ids != prompt.token_ids:
                raise DataError(f"{prompt.source}: its images are others than when they were loaded")
            self._keep(key, features)
            return features
        self._cache.move_to_end(key)
        return self._cache[key]

    def save_pretrained(self, folder: Path) -> None:
        self._processor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def filler(self, kind: str) -> tuple[list[int], dict[str, Tensor]]:
        """Token ids and features of a prompt that is one small grey `image` or `video`: what a batch without
        any takes along, so that the vision tower runs on every rank. See `models/inputs.py`.
        """
        from PIL import Image

        picture = Picture("a filler", data=to_png(Image.new("RGB", (2 * self.unit, 2 * self.unit), GREY)))
        item = picture if kind == "image" else Clip("a filler", frames=(picture, picture))
        encoded = self._encode_or_error(({"type": kind, kind: item},))
        if isinstance(encoded, DataError):
            raise ConfigError(f"the model's processor takes no {kind}: {encoded}")
        return encoded.token_ids, self.features(Prompt(-1, **vars(encoded)))

    def _checked(self, encoded: Encoded | DataError) -> Encoded | DataError:
        """A text that spells a placeholder would be read as one that has lost its picture."""
        try:
            if isinstance(encoded, Encoded):
                self._check_places(encoded.text, {})
        except DataError as error:
            return error
        return encoded

    def _encode_or_error(self, prompt: Content) -> Encoded | DataError:
        media = _media(prompt)
        try:
            text, prefix = self._rendered(prompt)
            self._check_places(text, media)
            collapsed = prefix + self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            multimodal = {**media, "prompt_ids": collapsed, "prefix": prefix, "digest": _digest(media)}
            ids, features = self._process(text, multimodal)
        except ConfigError:
            raise
        except DataError as error:
            return error
        except Exception as error:  # processors raise kinds of their own for what they do not take
            return DataError(f"the processor refuses it: {error}")
        self._keep(_key(text, multimodal["digest"]), features)
        return Encoded(ids, text, multimodal)

    def _rendered(self, prompt: Content) -> tuple[str, list[int]]:
        """The text with one placeholder for each picture, and what the tokenizer puts before a plain one."""
        if isinstance(prompt, tuple):
            text = "".join(part.get("text") or self._inserted[part["type"]] for part in prompt)
            return text, self._text.prefix_of(text)
        if not self.tokenizer.chat_template:
            raise ConfigError(
                f"the processor of {self.tokenizer.name_or_path} has no chat template, which "
                "--apply_chat_template and prompts that are lists of messages need: use a chat model, or "
                "plain-text prompts without the flag"
            )
        assert isinstance(prompt, list)
        chat = [{**message, "content": _bare(message["content"])} for message in prompt]
        try:
            return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), []
        except Exception as error:  # the template is a program of the model's authors and may raise anything
            raise DataError(f"the chat template refuses it: {error}") from error

    def _check_places(self, text: str, media: Mapping[str, Sequence[Any]]) -> None:
        for kind, token in self._places.items():
            places, given = text.count(token), len(media.get(kind, ()))
            if places != given and given:
                raise DataError(f"{given} {kind}s, and {places} times {token} in the prompt")
            if places and not given:
                raise DataError(f"{token} in the text of a prompt without a {kind}")

    def _process(self, text: str, multimodal: Mapping[str, Any]) -> tuple[list[int], dict[str, Tensor]]:
        """Token ids with all placeholders of each picture, and the features."""
        arguments: dict[str, Any] = {}
        if multimodal.get("image"):
            arguments["images"] = [[picture.image() for picture in multimodal["image"]]]
        if multimodal.get("video"):
            clips = [clip.images() for clip in multimodal["video"]]
            arguments |= {"videos": [clips], "do_sample_frames": False}
            arguments["video_metadata"] = [[clip_metadata(len(clip)) for clip in clips]]
        out = self._processor(text=[text], return_tensors="pt", add_special_tokens=False, **arguments)
        prefix = multimodal["prefix"]
        features = {name: value for name, value in out.items() if name not in _NOT_FEATURES}
        features = {name: torch.as_tensor(value) for name, value in features.items()}
        for name, value in features.items():
            if name.endswith(ALIGNED) and prefix:
                features[name] = torch.nn.functional.pad(value, (len(prefix), 0))
        return prefix + out["input_ids"][0].tolist(), features

    def _insertion(self, kind: str) -> str:
        """What the chat template writes for a picture of this kind; plain prompts get the same."""
        if not self.tokenizer.chat_template:
            return self._places[kind]
        part = {"type": "text", "text": "x"}
        try:
            with_it, without = (
                self.tokenizer.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
                for parts in ([{"type": kind}, part], [part])
            )
        except Exception:  # the template is a program of the model's authors and may raise anything
            return self._places[kind]
        start = next((i for i, (a, b) in enumerate(zip(with_it, without, strict=False)) if a != b), 0)
        found = with_it[start : start + len(with_it) - len(without)]
        return found if self._places[kind] in found else self._places[kind]

    def _keep(self, key: str, features: dict[str, Tensor]) -> None:
        self._cache[key] = features
        self._cached_bytes += _size(features)
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= _size(oldest)


def batch_features(
    rows: Sequence[Mapping[str, Tensor]], lengths: Sequence[int], width: int, left: bool = False
) -> dict[str, Tensor]:
    """The features of a batch whose rows have `lengths` tokens, padded to `width`, on the right or left.

    Token types are `[B, width]`, 0 for responses, padding and rows without pictures; everything else is
    concatenated over the rows that have it.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    out: dict[str, Tensor] = {}
    for name in names:
        if not name.endswith(ALIGNED):
            out[name] = torch.cat([row[name] for row in rows if name in row])
            continue
        out[name] = torch.zeros(len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            if name in row:
                start = width - lengths[i] if left else 0
                out[name][i, start : start + row[name].shape[1]] = row[name][0]
    return out


def engine_media(multimodal: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The pictures of a prompt as inference engines take them: PIL images; frames with their metadata."""
    out: dict[str, list[Any]] = {}
    if multimodal.get("image"):
        out["image"] = [picture.image() for picture in multimodal["image"]]
    if multimodal.get("video"):
        clips = [clip.images() for clip in multimodal["video"]]
        out["video"] = [(clip, clip_metadata(len(clip)) | {"do_sample_frames": False}) for clip in clips]
    return out


def _media(prompt: Content) -> dict[str, tuple[Any, ...]]:
    """The pictures and clips of a prompt, in order; {} for text."""
    if isinstance(prompt, str):
        return {}
    contents = [prompt] if isinstance(prompt, tuple) else [message["content"] for message in prompt]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    found = {k: tuple(part[k] for part in parts if part["type"] == k) for k in ("image", "video")}
    return {kind: values for kind, values in found.items() if values}


def _bare(content: Any) -> Any:
    """Without the pictures: templates ask for a part's type and text."""
    if isinstance(content, str):
        return content
    return [part if part["type"] == "text" else {"type": part["type"]} for part in content]


def _digest(media: Mapping[str, Sequence[Any]]) -> str:
    digest = hashlib.sha256()
    for kind in sorted(media):
        for item in media[kind]:
            digest.update(kind.encode() + hashlib.sha256(item.bytes()).digest())
            digest.update(repr(item.limits).encode())
    return digest.hexdigest()


def _key(text: str, digest: str) -> str:
    return f"{digest}/{hashlib.sha256(text.encode()).hexdigest()}"


def _size(features: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in features.values())
