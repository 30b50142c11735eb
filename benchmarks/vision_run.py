"""Ten steps of `train_vl.py` with a randomly initialised Qwen2.5-VL of the 3B shape; step times and memory.

    python benchmarks/vision_run.py --data mathvision_mini/testmini.jsonl --out benchmarks/results/vision.json

What a random model says is noise; what it costs is what a trained one of that shape costs, and its log-probs
must agree with the engine's all the same. Rows are those of MathVision: `question`, `image`, `answer`.
`--shape tiny --engine_type hf` goes through the same steps on a CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SHAPES: dict[str, dict[str, Any]] = {
    "3b": {
        "text": {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "mrope_section": [16, 24, 24],
        },
        "vision": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        "max_pixels": 512 * 28 * 28,
    },
    "tiny": {
        "text": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "mrope_section": [4, 6, 6],
        },
        "vision": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 1,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        "max_pixels": 16 * 28 * 28,
    },
}
# Noise to learn from: groups differ, so that every step has a gradient.
REWARD = """def noise(prompts, responses, references):
    return [(sum(map(ord, r)) % 11) / 10 for r in responses]
"""


def make_model(shape: str, folder: Path) -> int:
    """Write the model and its processor; returns how many weights it has."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from lightrft.tools.tiny_vision import (
        IMAGE,
        VIDEO,
        VISION_END,
        VISION_START,
        make_processor,
        make_vision_tokenizer,
        save_vlm,
    )

    tokenizer = make_vision_tokenizer()
    tokenizer.model_max_length = 32768
    sizes = SHAPES[shape]
    text = {"vocab_size": len(tokenizer)} | sizes["text"]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": text.pop("mrope_section")}
    text |= {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    text |= {"pad_token_id": tokenizer.pad_token_id, "tie_word_embeddings": True}
    tower = {"patch_size": 14, "window_size": 112, "spatial_merge_size": 2, "tokens_per_second": 2}
    names = {"image": IMAGE, "video": VIDEO, "vision_start": VISION_START, "vision_end": VISION_END}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=tower | sizes["vision"],
        tie_word_embeddings=True,
        **{f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()},
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration(config)
    if device == "cuda":
        model.to(torch.bfloat16)
    count = sum(p.numel() for p in model.parameters())
    save_vlm(model, make_processor("qwen2_5_vl", tokenizer, sizes["max_pixels"]), folder)
    return count


def command(args: argparse.Namespace, folder: Path) -> list[str]:
    """The words of the run."""
    values = {
        "pretrain": folder / "model",
        "prompt_data": args.data,
        "input_key": args.input_key,
        "images_key": args.images_key,
        "reward": f"{folder / 'reward.py'}:noise",
        "max_pixels": SHAPES[args.shape]["max_pixels"],
        "prompt_max_len": args.prompt_max_len,
        "generate_max_len": args.generate_max_len,
        "max_len": args.prompt_max_len + args.generate_max_len,
        "rollout_batch_size": args.rollout_batch_size,
        "n_samples_per_prompt": args.n_samples,
        "train_batch_size": args.rollout_batch_size * args.n_samples,
        "micro_train_batch_size": args.micro_batch_size,
        "micro_rollout_batch_size": 2 * args.micro_batch_size,
        "num_episodes": args.steps,  # it is stopped long before, so that nothing is saved
        "save_interval": args.steps + 1,
        "init_kl_coef": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "actor_learning_rate": 1e-6,
        "engine_type": args.engine_type,
        "zero_stage": 2,
        "rollout_logprobs": "all",
        "save_path": folder / "out",
        "log_dir": folder / "logs",
    }
    if args.engine_type != "hf":
        values["engine_mem_util"] = args.engine_mem_util
    words = [w for name, value in values.items() for w in (f"--{name}", str(value))]
    return [*words, "--apply_chat_template", "--gradient_checkpointing", "--debug", *args.more]


def run_until(command: list[str], environ: dict[str, str], metrics: Path, steps: int) -> int:
    """Run until `metrics` has so many steps, then stop it; returns how many there are."""
    process = subprocess.Popen(command, env=environ)
    while process.poll() is None and steps_in(metrics) < steps:
        time.sleep(0.2)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return steps_in(metrics)


def steps_in(metrics: Path) -> int:
    return metrics.read_text().count('"policy/loss"') if metrics.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, required=True, help="MathVision's testmini.jsonl or the like")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="3b")
    parser.add_argument("--engine_type", choices=["vllm", "sglang", "hf"], default="vllm")
    parser.add_argument("--engine_mem_util", type=float, default=0.35)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--input_key", default="question")
    parser.add_argument("--images_key", default="image")
    parser.add_argument("--rollout_batch_size", type=int, default=24)
    parser.add_argument("--n_samples", type=int, default=4)
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--prompt_max_len", type=int, default=1536)
    parser.add_argument("--generate_max_len", type=int, default=128)
    parser.add_argument("--commit", default="", help="where the machine has no git history")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("more", nargs="*", help="flags for train_vl.py, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        # In a process of its own, which takes what it holds of the GPU with it.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            count = pool.apply(make_model, (args.shape, folder / "model"))
        print(f"a Qwen2.5-VL of {count / 1e9:.3f}B weights in {time.monotonic() - began:.0f} s", flush=True)
        (folder / "reward.py").write_text(REWARD)
        environ = os.environ | {"HF_HUB_OFFLINE": "1"}
        run = [sys.executable, str(ROOT / "train_vl.py"), *command(args, folder)]
        metrics = folder / "logs" / "metrics.jsonl"
        if run_until(run, environ, metrics, args.steps) < args.steps:
            print("vision_run: fewer steps than asked for; what the run said stands above", file=sys.stderr)
            return 1
        what = f"Qwen2.5-VL, {count / 1e9:.3f}B random weights, {args.data.name}, {args.engine_type}"
        summary = [sys.executable, str(ROOT / "benchmarks" / "run_summary.py"), str(metrics)]
        summary += ["--out", str(args.out), "--what", what, "--commit", args.commit]
        return subprocess.run(summary, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
