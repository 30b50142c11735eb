"""Secrets on a command line: refused, answered with their variable, never repeated."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightrft.config.arguments import parse
from lightrft.config.credentials import hide_secrets
from lightrft.config.flags import FLAGS
from lightrft.errors import ConfigError

TRAIN = Path(__file__).parents[2] / "train.py"
BASE = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "8", "--dry_run"]
# Shaped like keys; they open nothing.
WANDB = "0123456789abcdef" * 2 + "01234567"
HF = "hf_" + "Q" * 34
PLAIN = "correct-horse-battery"

CASES = [
    (["--wandb_key", PLAIN], "WANDB_API_KEY"),
    ([f"--wandb_key={PLAIN}"], "WANDB_API_KEY"),
    (["--wandb_api_key", PLAIN], "WANDB_API_KEY"),
    (["--hf_token", PLAIN], "HF_TOKEN"),
    (["--hf-token", PLAIN], "HF_TOKEN"),
    (["--hub_token", PLAIN], "HF_TOKEN"),
    (["--rm_token", PLAIN], "LIGHTRFT_RM_TOKEN"),
    (["--remote_rm_api_key", PLAIN], "LIGHTRFT_RM_TOKEN"),
    (["--password", PLAIN], "whichever it is"),
    (["--use_wandb", WANDB], "WANDB_API_KEY"),
    ([f"--use_wandb={WANDB}"], "WANDB_API_KEY"),
    (["--wandb_org", WANDB], "WANDB_API_KEY"),
    (["--use_wandb", "project", WANDB], "WANDB_API_KEY"),
    (["--pretrain", HF], "HF_TOKEN"),
    (["--remote_rm_url", f"http://user:{PLAIN}@host:5000"], "LIGHTRFT_RM_TOKEN"),
    (["--remote_rm_url", f"http://host/score?api_key={PLAIN}"], "LIGHTRFT_RM_TOKEN"),
]


@pytest.mark.parametrize(
    ("words", "variable"), CASES, ids=[w[0].split("=")[0] + str(i) for i, (w, _) in enumerate(CASES)]
)
def test_a_secret_is_refused_with_its_variable_and_not_repeated(words, variable):
    with pytest.raises(ConfigError) as caught:
        parse([*BASE, *words, "--max_len", "4k", "--unknwon"])
    text = str(caught.value)
    assert variable in text
    assert "--max_len 4k" in text  # the other problems come along
    for secret in (PLAIN, WANDB, HF):
        assert secret not in text


def test_flags_that_end_in_key_or_hold_token_are_no_secrets():
    words = ["--input_key", "question", "--images_key", "image", "--use_wandb", "project"]
    words += ["--engine_max_num_batched_tokens", "512", "--remote_rm_url", "http://host:5000/score?model=a"]
    assert hide_secrets(words, FLAGS) == (words, [])


def test_a_misspelt_flag_is_not_taken_for_a_secret():
    with pytest.raises(ConfigError, match="did you mean --input_key"):
        parse([*BASE, "--inputs_key", "x"])


def test_the_front_door_keeps_a_key_out_of_both_streams():
    done = subprocess.run(
        [sys.executable, TRAIN, *BASE, "--use_wandb", WANDB], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "WANDB_API_KEY" in done.stderr
    assert WANDB not in done.stdout + done.stderr
