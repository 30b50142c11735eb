"""Make a tiny model on the spot: no hub, no download, seconds on a CPU.

    python -m lightrft.tools.make_tiny adder OUT     # the quick start: half-taught addition, and its data
    python -m lightrft.tools.make_tiny shapes OUT    # the vision quick start: half-taught counting, data
    python -m lightrft.tools.make_tiny random OUT    # random weights
    python -m lightrft.tools.make_tiny vision OUT    # a random vision-language model, with its processor

Each writes a plain Hugging Face folder: config, safetensors, tokenizer, chat template.

What is simplified: a word is a character (or a byte), there is one user turn, and the weights fit a floppy
disk. Everything that reads the folder is the code that reads a large model.
"""

from __future__ import annotations

import argparse
import os
import string
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from lightrft.errors import ConfigError

Vocabulary = Literal["chars", "bytes"]

PAD, EOS, USER, ASSISTANT, UNKNOWN = "<pad>", "<eos>", "<u>", "<a>", "<unk>"
SPECIAL_TOKENS = [PAD, EOS, USER, ASSISTANT, UNKNOWN]
CHARACTERS = string.digits + "+-*/=?!.,:;()<>[]{}'\"\\$%#_ \n" + string.ascii_letters
MAX_LEN = 1024  # positions; rotary embeddings make them free
SMALLEST_HEAD = 32  # vLLM on a CPU knows no smaller head

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<a>{{ message['content'] }}<eos>"
    "{% else %}<u>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def make_tokenizer(vocab: Vocabulary = "chars") -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template.

    `chars`: one token per ASCII character, anything else is `<unk>`. `bytes`: one token per UTF-8 byte, so
    that any text survives, and a character can take several tokens.
    """
    if vocab == "chars":
        words = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
    elif vocab == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
        tokenizer = Tokenizer(models.BPE(words, merges=[], unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        raise ConfigError(f"vocab {vocab!r}: choose chars or bytes")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        model_max_length=MAX_LEN,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(
    tokenizer: PreTrainedTokenizerFast,
    hidden: int,
    layers: int,
    heads: int,
    tie: bool = True,
    init_std: float = 0.02,
) -> LlamaForCausalLM:
    """A Llama with random fp32 weights from torch's global generator.

    Llama, as AutoTokenizer swaps the pre-tokenizer of some other families for their own.
    """
    if heads < 1 or hidden % heads or hidden // heads < SMALLEST_HEAD:
        raise ConfigError(
            f"--hidden {hidden} with {heads} heads: a head needs at least {SMALLEST_HEAD} numbers; "
            f"use --hidden {SMALLEST_HEAD * max(1, heads)} or a larger multiple of {max(1, heads)}"
        )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=MAX_LEN,
        initializer_range=init_std,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the folder that `from_pretrained` reads."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def make_random_llama(
    out: str | Path,
    vocab: Vocabulary = "chars",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 2,
    seed: int = 0,
    tie: bool = True,
) -> Path:
    """Write a tiny Llama with random weights to `out` and return the folder; the same bytes for a seed.

    Weights are wider than a fresh model's, so that its predictions differ by context and a wrong shift or
    mask shows. The caller's random state is left alone.
    """
    tokenizer = make_tokenizer(vocab)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(tokenizer, hidden, layers, heads, tie, init_std=0.15)
    save(model, tokenizer, Path(out))
    return Path(out)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    from lightrft.tools import adder, shapes, tiny_vision  # they build on this module

    parser = argparse.ArgumentParser(prog="python -m lightrft.tools.make_tiny", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    adder.add_command(commands)
    shapes.add_command(commands)
    tiny_vision.add_command(commands)
    random = commands.add_parser("random", help="random weights", allow_abbrev=False)
    random.add_argument("out", type=Path, help="folder to write")
    random.add_argument("--vocab", choices=["chars", "bytes"], default="chars")
    random.add_argument("--hidden", type=int, default=64)
    random.add_argument("--layers", type=int, default=2)
    random.add_argument("--heads", type=int, default=2)
    random.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    disable_progress_bar()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which else looks for a GPU
    try:
        if args.command == "adder":
            adder.run(args)
        elif args.command == "shapes":
            shapes.run(args)
        elif args.command == "vision":
            tiny_vision.run(args)
        else:
            made = make_random_llama(
                args.out, args.vocab, args.hidden, args.layers, args.heads, seed=args.seed
            )
            print(f"wrote {made}")
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
