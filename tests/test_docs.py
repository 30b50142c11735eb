"""What the README and the examples tell people to type is accepted by the front end."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACEHOLDERS = {
    "path/to/a/vision/model": "MODEL",
    "path/to/a/chat/model": "MODEL",
    "train.jsonl": "DATA",
    "test.jsonl": "DATA",
}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2 #### 2"}\n' * 2000)
    return path


def dry_run(words, tiny_model, data, script="train.py"):
    names = {"MODEL": str(tiny_model), "DATA": str(data)}
    words = [names.get(PLACEHOLDERS.get(w, ""), w) for w in words]
    return subprocess.run(
        [sys.executable, ROOT / script, *words, "--dry_run", "--num_gpus", "8"],
        capture_output=True,
        text=True,
        check=False,
        cwd=data.parent,
    )


def test_the_readmes_launch_command_passes_a_dry_run(tiny_model, data):
    blocks = re.findall(r"```bash\n(deepspeed .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    words = shlex.split(blocks[0].replace("\\\n", " "))
    done = dry_run(words[words.index("train.py") + 1 :], tiny_model, data)
    assert done.returncode == 0, done.stderr
    assert "not available yet" not in done.stderr
    assert "one optimizer step" in done.stdout


def example_words(script, **variables):
    """The words that a launch script would hand to train.py, by letting bash expand it."""
    text = (ROOT / "examples" / script).read_text()
    text = re.sub(r"exec \$LAUNCH train(_vl)?\.py", r"printf '%s\\0'", text)
    settings = "".join(f"{k}={shlex.quote(v)} " for k, v in variables.items())
    done = subprocess.run(
        ["bash", "-c", f"export {settings}; {text.replace('cd ', ': ')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip("\0").split("\0")


def test_the_gsm8k_script_passes_a_dry_run(tiny_model, data):
    words = example_words(
        "gsm8k_grpo.sh", PRETRAIN=str(tiny_model), TRAIN_DATA=str(data), EVAL_DATA=str(data)
    )
    done = dry_run(words, tiny_model, data)
    assert done.returncode == 0, done.stderr
    assert "not available yet" not in done.stderr
    assert r"\boxed{}" in " ".join(words)


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory):
    from lightrft.tools.tiny_vision import make_random_vlm

    return make_random_vlm(tmp_path_factory.mktemp("vlm") / "model")


def test_the_vision_script_passes_a_dry_run(vision_model, data):
    files = {"TRAIN_DATA": str(data), "EVAL_DATA": str(data)}
    words = example_words("geo3k_grpo_vl.sh", PRETRAIN=str(vision_model), **files)
    done = dry_run(words, vision_model, data, "train_vl.py")
    assert done.returncode == 0, done.stderr
    assert "not available yet" not in done.stderr
    assert r"\boxed{}" in " ".join(words)


def test_the_vision_pages_commands_pass_a_dry_run(vision_model, data):
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "vision.md").read_text(), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    runs = [words for words in commands if "train_vl.py" in words]
    assert len(runs) >= 2
    for words in runs:
        done = dry_run(words[words.index("train_vl.py") + 1 :], vision_model, data, "train_vl.py")
        assert done.returncode == 0, done.stderr
        assert "not available yet" not in done.stderr


@pytest.mark.parametrize("script", sorted(p.name for p in (ROOT / "examples").glob("*.sh")))
def test_scripts_parse(script):
    done = subprocess.run(
        ["bash", "-n", ROOT / "examples" / script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_page_that_the_readme_names_exists():
    named = re.findall(r"`((?:docs|examples|lightrft|tests)/[\w./]*)`", (ROOT / "README.md").read_text())
    assert len(named) > 8
    assert [n for n in named if not (ROOT / n).exists()] == []
