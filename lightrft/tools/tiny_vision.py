"""Tiny vision-language models of the Qwen families, with their processors: no hub, seconds on a CPU.

They are read by the code that reads the large ones: config.json, safetensors, tokenizer, image and video
processor, chat template with image parts. A token is a byte, and an image has one token for 28 x 28 pixels.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lightrft.errors import ConfigError
from lightrft.tools.make_tiny import MAX_LEN, make_tokenizer

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
VISION_START, VISION_END, VISION_PAD = "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_TOKENS = [VISION_START, VISION_END, VISION_PAD, IMAGE, VIDEO]  # behind all others
HEAD = 32  # numbers of an attention head, in text and tower: the smallest that vLLM knows on a CPU
PIXELS = 28  # side of the square that becomes one token
MAX_PIXELS = 16 * PIXELS * PIXELS

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<a>{% else %}<u>{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def make_vision_tokenizer() -> PreTrainedTokenizerFast:
    """A token per byte, and those that stand for images and videos."""
    tokenizer = make_tokenizer("bytes")
    tokenizer.add_tokens([AddedToken(token, special=True) for token in VISION_TOKENS], special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_processor(family: str, tokenizer: PreTrainedTokenizerFast, max_pixels: int = MAX_PIXELS) -> Any:
    """What `AutoProcessor` loads for `family`; images are shrunk to `max_pixels`."""
    import transformers

    patch = 16 if family == "qwen3_vl" else 14
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": max_pixels}
    sizes: dict[str, Any] = {"size": size, "patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}
    if family == "qwen3_vl":  # as its video processor has it; engines normalise both alike
        sizes |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    names = {
        "qwen2_vl": ("Qwen2VLProcessor", "Qwen2VLVideoProcessor"),
        "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
        "qwen3_vl": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
    }
    processor, video = names[family]
    video_size = size if family != "qwen3_vl" else size | {"longest_edge": 8 * max_pixels}
    return getattr(transformers, processor)(
        image_processor=transformers.Qwen2VLImageProcessor(**sizes),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, video)(**(sizes | {"size": video_size})),
        chat_template=CHAT_TEMPLATE,
    )


def _tower(family: str, hidden: int, width: int, depth: int) -> dict[str, Any]:
    """The vision part of a config."""
    common = {"depth": depth, "num_heads": width // HEAD, "spatial_merge_size": 2, "temporal_patch_size": 2}
    if family == "qwen2_vl":
        own = {"embed_dim": width, "hidden_size": hidden, "mlp_ratio": 2, "patch_size": 14}
    elif family == "qwen2_5_vl":
        own = {"hidden_size": width, "out_hidden_size": hidden, "intermediate_size": 2 * width}
        own |= {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [depth - 1]}  # type: ignore[dict-item]
    else:
        own = {"hidden_size": width, "out_hidden_size": hidden, "intermediate_size": 2 * width}
        own |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}  # type: ignore[dict-item]
    return common | own


def make_vlm(
    family: str,
    tokenizer: PreTrainedTokenizerFast,
    hidden: int = 64,
    layers: int = 2,
    width: int = 32,
    depth: int = 2,
    init_std: float = 0.02,
    tie: bool = True,
) -> PreTrainedModel:
    """A model with random fp32 weights from torch's global generator. `hidden` and `width` (of the tower) are
    multiples of 64 and 32.
    """
    import transformers

    if family not in FAMILIES:
        raise ConfigError(f"--family {family}: choose {', '.join(FAMILIES)}")
    if hidden % (2 * HEAD) or width % HEAD:
        raise ConfigError(f"--hidden {hidden} must be a multiple of {2 * HEAD}, --width {width} of {HEAD}")
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _TOKEN_FIELDS.items()}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    if family == "qwen3_vl":
        rope["mrope_interleaved"] = True
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": hidden // HEAD // 2,
        "head_dim": HEAD,
        "max_position_embeddings": MAX_LEN,
        "initializer_range": init_std,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config_class, model_class = {
        "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration"),
        "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
        "qwen3_vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
    }[family]
    config = getattr(transformers, config_class)(
        text_config=text | {"tie_word_embeddings": tie},
        vision_config=_tower(family, hidden, width, depth)
        | {"initializer_range": init_std, "in_channels": 3},
        tie_word_embeddings=tie,
        **ids,
    )
    return getattr(transformers, model_class)(config)


_TOKEN_FIELDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def make_random_vlm(
    out: str | Path, family: str = "qwen2_5_vl", seed: int = 0, tie: bool = True, **sizes: Any
) -> Path:
    """Write a tiny model of `family` with random weights, and its processor, to `out`; return the folder.

    Weights are wider than a fresh model's, so that images and contexts differ in their predictions. The
    caller's random state is left alone.
    """
    tokenizer = make_vision_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_vlm(family, tokenizer, init_std=0.15, tie=tie, **sizes)
    save_vlm(model, make_processor(family, tokenizer), Path(out))
    return Path(out)


def save_vlm(model: PreTrainedModel, processor: Any, out: Path) -> None:
    """Write the folder that `from_pretrained` of model and processor read."""
    model.save_pretrained(out)
    processor.save_pretrained(out)
    processor.tokenizer.save_pretrained(out)


def add_command(commands: Any) -> None:
    """Add `vision` and its flags to the subparsers of `make_tiny`."""
    parser = commands.add_parser("vision", help="a random vision-language model", allow_abbrev=False)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32, help="of the vision tower")
    parser.add_argument("--depth", type=int, default=2, help="of the vision tower")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> None:
    """Carry out a parsed `vision` command."""
    sizes = {name: getattr(args, name) for name in ("hidden", "layers", "width", "depth")}
    print(f"wrote {make_random_vlm(args.out, args.family, args.seed, **sizes)}")
