"""The table of flags against the reference configuration, and against itself."""

import json
from pathlib import Path

import pytest

from lightrft.config.arguments import MOVED, parse
from lightrft.config.flags import ALIASES, FLAGS, GROUPS
from lightrft.config.resolve import resolve

SEED = json.loads((Path(__file__).parent / "seed_flags.json").read_text())
REQUIRED = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "8", "--dry_run"]
KINDS = {"str": "str", "int": "int", "float": "float", "flag": "flag", "tuple[float,float]": "pair"}


def by_name(row):
    return row["name"]


@pytest.mark.parametrize("row", SEED, ids=by_name)
def test_every_flag_of_the_reference_is_as_it_says(row):
    flag = FLAGS[row["name"].removeprefix("--")]
    assert flag.kind == KINDS[row["type"]]
    assert next(g.name for g in GROUPS if flag in g.flags) == row["section"]
    if isinstance(row["default"], str) and row["default"].startswith("<"):
        assert flag.default is None
        assert flag.default_text
    else:
        assert flag.default == row["default"]
    extra = {"hf"} if flag.name == "engine_type" else set()  # ours: generates without an engine
    assert set(flag.choices) - extra == set(row.get("choices", []))
    assert (flag.required != "") == row.get("required", False)
    assert flag.dest == row.get("dest", flag.name)
    assert flag.advised == row.get("advised_range", flag.advised)


def test_the_reference_has_62_flags_and_all_are_compared():
    assert len(SEED) == 62


def test_groups_stand_in_the_order_of_the_reference():
    sections = list(dict.fromkeys(row["section"] for row in SEED))
    ours = [group.name for group in GROUPS]
    assert [name for name in ours if name in sections] == sections


def test_the_parser_gives_the_defaults_of_the_reference():
    values = parse(REQUIRED).values
    for row in SEED:
        name = row["name"].removeprefix("--")
        plain = not (isinstance(row["default"], str) and row["default"].startswith("<"))
        if name in values and plain and not row.get("required"):
            assert values[name] == row["default"], name


NAMED_ELSEWHERE = (Path(__file__).parent / "more_flags.txt").read_text().split()


@pytest.mark.parametrize("name", NAMED_ELSEWHERE)
def test_flags_of_the_other_documents_exist(name):
    assert name in FLAGS


def test_conditions_name_flags_and_values_that_exist():
    for flag in FLAGS.values():
        for when in flag.acts_when:
            other = FLAGS[when.flag]
            known = {*other.choices, False} if other.kind == "flag" else set(other.choices)
            assert set(when.values) <= known, flag.name


def test_planned_choices_are_choices():
    for flag in FLAGS.values():
        own = {"path.py:Object"} if flag.user_file else set()
        assert set(flag.planned_choices) <= set(flag.choices) | own, flag.name


def test_defaults_satisfy_their_own_range_and_choices():
    for flag in FLAGS.values():
        numbers = flag.default if isinstance(flag.default, list) else [flag.default]
        for value in numbers:
            if flag.range is not None and value is not None:
                assert flag.range.holds(value), flag.name
            if flag.choices and value is not None:
                assert value in flag.choices, flag.name


@pytest.mark.parametrize("name", [f.name for f in FLAGS.values() if f.choices and f.kind != "words"])
def test_every_choice_parses(name):
    for choice in FLAGS[name].choices:
        assert parse([*REQUIRED, f"--{name}", str(choice)]).values[name] == choice


def test_old_spellings_and_moved_flags_shadow_no_flag():
    assert not set(ALIASES) & set(FLAGS)
    assert not set(MOVED) & (set(FLAGS) | set(ALIASES))
    assert ALIASES["eps_clip"] == "clip_range"


def test_every_flag_has_help_and_a_resolved_place():
    config = resolve(REQUIRED, "text", {}, ())
    for flag in FLAGS.values():
        assert flag.help
        assert flag.dest in config.to_dict()
