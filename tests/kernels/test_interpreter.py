"""The Triton kernels' tests in Triton's interpreter; a process of its own, as an import chooses it."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton comes with vLLM and torch's GPU builds")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_the_kernels_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu", "test_triton.py"],
        cwd=Path(__file__).parent,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) >= 20
    assert "skipped" not in done.stdout
