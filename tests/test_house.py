"""The house rules that a machine can check. CONTRIBUTING.md says why."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTION_LINES, FILE_LINES, PARAMETERS = 60, 400, 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> list[Function]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def shape_faults(source: str) -> Iterator[str]:
    """Too long, too many parameters, `**kwargs` in a constructor, a stub. For the library."""
    if source.count("\n") > FILE_LINES:
        yield f"the file has more than {FILE_LINES} lines"
    for fn in functions(ast.parse(source)):
        length = (fn.end_lineno or fn.lineno) - fn.lineno + 1
        if length > FUNCTION_LINES:
            yield f"{fn.lineno}: {fn.name} has {length} lines, more than {FUNCTION_LINES}"
        if any("triton.jit" in ast.unparse(d) for d in fn.decorator_list):
            continue  # a kernel's launch hands it every pointer and stride by itself
        args = [a.arg for a in [*fn.args.posonlyargs, *fn.args.args, *fn.args.kwonlyargs]]
        if len([a for a in args if a not in {"self", "cls"}]) > PARAMETERS:
            yield f"{fn.lineno}: {fn.name} has more than {PARAMETERS} parameters"
        if fn.name == "__init__" and fn.args.kwarg:
            yield f"{fn.lineno}: **{fn.args.kwarg.arg} in a constructor"
        if any(isinstance(s, ast.Raise) and "NotImplementedError" in ast.unparse(s) for s in fn.body):
            yield f"{fn.lineno}: {fn.name} is a stub"


def safety_faults(source: str) -> Iterator[str]:
    """Swallowed exceptions and remote code that no flag asked for. For library and tests."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body):
            yield f"{node.lineno}: an exception is swallowed"
        if isinstance(node, ast.keyword) and ast.unparse(node) == "trust_remote_code=True":
            yield f"{node.value.lineno}: trust_remote_code is hard-wired"


def asserts(fn: Function) -> bool:
    """An `assert`, or a call whose name says that it checks: `pytest.raises`, `assert_close`, `check_*`."""
    for node in ast.walk(fn):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in {"raises", "warns"} or name.startswith(("assert_", "check_")):
                return True
    return False


def empty_tests(source: str) -> Iterator[str]:
    """Tests that check nothing. For tests."""
    for fn in functions(ast.parse(source)):
        if fn.name.startswith("test_") and not asserts(fn):
            yield f"{fn.lineno}: {fn.name} asserts nothing"


@pytest.mark.parametrize(
    ("rule", "folders"),
    [(shape_faults, ["lightrft"]), (safety_faults, ["lightrft", "tests"]), (empty_tests, ["tests"])],
)
def test_the_house_rules_hold(rule: Callable[[str], Iterator[str]], folders: list[str]) -> None:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 5
    found = [f"{path.relative_to(ROOT)}:{fault}" for path in files for fault in rule(path.read_text())]
    assert found == []


def test_there_is_one_training_step() -> None:
    files = (ROOT / "lightrft").rglob("*.py")
    steps = [p.name for p in files for fn in functions(ast.parse(p.read_text())) if fn.name == "train_step"]
    assert steps == ["controller.py"]


@pytest.mark.parametrize(
    ("rule", "source", "says"),
    [
        (shape_faults, "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
        (shape_faults, "x = 1\n" * 401, "more than 400 lines"),
        (shape_faults, "def f(a, b, c, d, e, *, g, h, i, j): ...", "more than 8 parameters"),
        (shape_faults, "class A:\n    def __init__(self, **rest): ...", "**rest in a constructor"),
        (shape_faults, "def f():\n    raise NotImplementedError", "f is a stub"),
        (safety_faults, "try:\n    f()\nexcept Exception:\n    pass", "3: an exception is swallowed"),
        (safety_faults, "load(trust_remote_code=True)", "trust_remote_code is hard-wired"),
        (empty_tests, "def test_x():\n    f()", "test_x asserts nothing"),
    ],
)
def test_a_broken_rule_is_found(rule: Callable[[str], Iterator[str]], source: str, says: str) -> None:
    assert any(says in fault for fault in rule(source))


def test_what_keeps_to_the_rules_is_left_alone() -> None:
    source = """
@triton.jit
def kernel(a, b, c, d, e, g, h, i, j): ...

def f(a, b, c, d, e, g, h, i):
    return load(a, trust_remote_code=b)

def test_f():
    try:
        f()
    except ValueError as error:
        raise RuntimeError from error
    with pytest.raises(ValueError):
        f()
"""
    assert [*shape_faults(source), *safety_faults(source), *empty_tests(source)] == []
