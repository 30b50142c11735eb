"""Where Hugging Face keeps what it has downloaded, and whether it may download more. No library of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hub:
    """The hub as this environment sees it."""

    offline: bool
    cache: Path  # models--org--name, datasets--org--name
    datasets_cache: Path  # org___name

    def model_folder(self, name: str) -> Path | None:
        """The newest snapshot of a model in the cache."""
        repository = self.cache / f"models--{name.replace('/', '--')}"
        main = repository / "refs" / "main"
        if main.is_file():
            return repository / "snapshots" / main.read_text().strip()
        snapshots = sorted((repository / "snapshots").glob("*"))
        return snapshots[-1] if snapshots else None

    def has_dataset(self, name: str) -> bool:
        hub_copy = self.cache / f"datasets--{name.replace('/', '--')}"
        return hub_copy.is_dir() or (self.datasets_cache / name.replace("/", "___")).is_dir()


def read_hub(environ: Mapping[str, str]) -> Hub:
    """The hub's settings, from the variables that huggingface_hub and datasets read."""
    base = environ.get("XDG_CACHE_HOME", "~/.cache")
    home = environ.get("HF_HOME", f"{base}/huggingface")
    cache = environ.get("HF_HUB_CACHE", environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    datasets = environ.get("HF_DATASETS_CACHE", f"{home}/datasets")
    offline = environ.get("HF_HUB_OFFLINE", environ.get("TRANSFORMERS_OFFLINE", ""))
    return Hub(
        offline=offline.upper() in ("1", "ON", "YES", "TRUE"),
        cache=Path(cache).expanduser(),
        datasets_cache=Path(datasets).expanduser(),
    )
