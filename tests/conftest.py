"""What all tests share: a tiny model, and the rule for tests that need a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no CUDA device; `-ra` (the default here) counts them."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a random Llama, hidden 64, 2 layers, a token per character. Read only."""
    from lightrft.tools.make_tiny import make_random_llama

    return make_random_llama(tmp_path_factory.mktemp("tiny") / "model")
