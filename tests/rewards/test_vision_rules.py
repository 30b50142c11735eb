"""The rewards of vision tasks: Geometry3K's, and the choice of a letter."""

import pytest

from lightrft.rewards.rules import geo3k, multiple_choice

CHOSEN = [
    ("B", "B"),
    ("(b)", "B"),
    ("b", "B"),
    ("B.", "B"),
    (r"\boxed{B}", "B"),
    (r"\boxed{\text{(B)}}", "B"),
    (r"\boxed{A} no, \boxed{B}", "B"),
    (r"The answer is B, so \boxed{C}", "C"),
    ("The answer is B.", "B"),
    ("Answer: (b)", "B"),
    ("The answer is A. No: the answer is **D**", "D"),
    ("answer = option C because", "C"),
    ("B) 12 cm", "B"),
    ("Option E", "E"),
    ("A triangle has three sides", None),
    ("I don't know", None),
    ("The answer is A triangle"[:13] + " I'm sure of", None),
    ("the answer is Apple", None),
    ("the answer is a pear", None),
    (r"\boxed{12}", None),
    ("K", None),
    ("", None),
    ("AB", None),
]


@pytest.mark.parametrize(("response", "letter"), CHOSEN)
def test_vision_the_choice_is_found_where_it_is_stated(response, letter):
    assert multiple_choice.find_choice(response) == letter


def test_vision_choices_are_scored_against_references_in_any_form():
    for reference in ("C", "(C)", "C)", "c", r"\text{C}"):
        assert multiple_choice.score("C", [reference]).value == 1.0
        assert multiple_choice.score("D", [reference]).value == 0.0
        assert multiple_choice.check_reference(reference) is None
    assert multiple_choice.score("no idea at all", ["C"]).status == "unparsed"
    assert multiple_choice.score("C", ["C or D"]).value is None
    assert "no choice from A to J" in multiple_choice.check_reference("12")


@pytest.mark.parametrize(
    ("response", "reference", "value"),
    [
        (r"<think>…</think> \boxed{2\sqrt{221}}", r"2 \sqrt {221}", 1.0),
        (r"\boxed{5}", "5", 0.9),
        (r"<think>…</think> \boxed{6}", "5", 0.1),
        ("no", "5", 0.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 0.9),
    ],
)
def test_vision_geometry_is_nine_parts_answer_and_one_part_format(response, reference, value):
    assert geo3k.score(response, [reference]).value == pytest.approx(value)


def test_vision_geometry_without_a_readable_reference_is_excluded():
    assert geo3k.score(r"\boxed{5}", [""]).value is None
    assert geo3k.check_reference("x + ") is not None or geo3k.check_reference("") is not None
