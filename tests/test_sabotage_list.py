"""The list of mutations fits the code as it is. `python -m tests.sabotage` applies them."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import MUTANTS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.file}: {m.name}")
def test_a_snippet_stands_exactly_once_and_its_mutation_still_parses(mutant):
    source = (ROOT / mutant.file).read_text()
    assert source.count(mutant.old) == 1, mutant.old
    mutated = source.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def test_there_are_many_and_each_has_a_name_of_its_own():
    assert len(MUTANTS) >= 48
    assert [name for name, n in Counter((m.file, m.name) for m in MUTANTS).items() if n > 1] == []


def test_the_named_tests_exist():
    missing = {path for m in MUTANTS for path in m.tests if not (ROOT / path).exists()}
    assert missing == set()
