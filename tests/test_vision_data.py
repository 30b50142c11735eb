"""Real images: MathVision's small test set through load, encode and a rollout; and the benchmark's own path.

`LIGHTRFT_TEST_DATA` names the folder that holds `mathvision_mini/testmini.jsonl` and its images.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lightrft.data.multimodal import VisionProcessor
from lightrft.data.parts import MediaOptions
from lightrft.data.prompts import load_prompts
from lightrft.data.rows import PromptOptions
from lightrft.models.loading import ModelOptions, load_causal_lm, load_processor
from lightrft.models.multimodal import vision_token_ids
from lightrft.rollout.base import SamplingOptions
from lightrft.rollout.hf import HFEngine
from lightrft.tools.tiny_vision import make_random_vlm

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
ROWS = Path(os.environ.get("LIGHTRFT_TEST_DATA", "")) / "mathvision_mini" / "testmini.jsonl"


@pytest.mark.skipif(not ROWS.is_file(), reason="LIGHTRFT_TEST_DATA names no folder with mathvision_mini")
def test_vision_real_images_load_encode_and_roll_out(tmp_path):
    folder = str(make_random_vlm(tmp_path / "model"))
    processor = VisionProcessor(load_processor(folder))
    media = MediaOptions(images_key="image")
    options = PromptOptions("question", apply_chat_template=True, media=media, prompt_max_len=1000)
    prompts = load_prompts(str(ROWS), options, processor)
    # By hand: 56 rows number several places for their one image; 246 have one marker, one none, one repeats.
    assert prompts.report.rows == 304
    assert prompts.report.counts == {"image count": 56}
    assert len(prompts) == 248
    assert sorted(len(p.multimodal["image"]) for p in prompts)[-2:] == [1, 2]
    model = load_causal_lm(ModelOptions(folder, vision=True))
    banned = vision_token_ids(model.config)
    engine = HFEngine(model, processor.tokenizer, 16, banned, False, processor.features)
    rollouts = engine.generate(list(prompts), SamplingOptions(n=1, max_new_tokens=2))
    assert len(rollouts) == 248
    assert all(r.token_ids and not set(r.token_ids) & set(banned) for r in rollouts)


def test_vision_benchmark_runs_its_steps_and_writes_a_summary(tmp_path):
    for i in range(4):
        Image.effect_noise((84, 56), 60).convert("RGB").save(tmp_path / f"{i}.png")
    rows = [{"question": f"{i}?", "image": f"{i % 4}.png", "answer": "1"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ["--rollout_batch_size", "4", "--n_samples", "2", "--micro_batch_size", "2"]
    sizes += ["--generate_max_len", "4", "--prompt_max_len", "64", "--steps", "2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "vision_run.py"), "--shape", "tiny", *sizes]
    command += [
        "--engine_type",
        "hf",
        "--data",
        str(tmp_path / "rows.jsonl"),
        "--out",
        str(tmp_path / "a.json"),
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["steps"] >= 2
    assert result["sentinels"]["gap_mean"] == "ok"
    assert result["metrics"]["time/step"]["median"] > 0
