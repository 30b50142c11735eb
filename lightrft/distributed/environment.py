"""Settings of third-party libraries that must stand before they are imported. Import this file first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch


def quiet_start() -> None:
    """Tell DeepSpeed which accelerator there is (it warns when it has to look), and hush progress bars.

    This environment's programs come first in PATH: DeepSpeed compiles with the `ninja` that it finds there,
    and two versions rebuild each other's work. transformers imports DeepSpeed by itself, so this comes before
    either.
    """
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def quiet_transformers() -> None:
    """No progress bars for loading and writing weights: on N ranks they are N bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()
