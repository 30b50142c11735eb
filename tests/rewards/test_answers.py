"""Where an answer stands in a response, and which number it is."""

import time
from fractions import Fraction

import pytest

from lightrft.rewards.rules import gsm8k
from lightrft.rewards.rules import math as math_rule
from lightrft.rewards.rules._answers import clean, find_answer, last_boxed, last_hash_answer, parse_number


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{7} but \boxed{8 is cut", "7"),
        (r"\boxed{4 and \boxed{5}", "5"),
        (r"\boxed {9}", "9"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"a \\[2pt]\boxed{6}", "6"),
        (r"} \boxed{3} {", "3"),
        (r"\boxed{ }", ""),
        (r"\boxed", None),
        ("no box", None),
    ],
)
def test_the_complete_box_that_opens_last_counts(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("work\n#### 42\n" + "and on. " * 50, "42"),
        ("#### 41\n#### 42", "42"),
        ("####$18", "$18"),
        ("#### -3.", "-3"),
        ("#### Step 2\nmore", None),
        ("#### 42\n#### Explanation", "42"),
        ("the answer is #### 42", None),
        ("####", None),
    ],
)
def test_the_last_hash_line_that_begins_like_a_value_counts(text, answer):
    assert last_hash_answer(text) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"#### 41 and so \boxed{42}", "42"),
        (r"\boxed{42}" + "\n#### 41", "42"),
        ("The answer is 41.\n#### 42", "42"),
        ("The answer is 72.", "72"),
        ("The final answer is: **72**. I hope it is correct.", "72"),
        ("Answer: $-3$\nThat is all.", "-3"),
        ("The answer is $p - q$.", "p - q"),
        ("The answer is 41. Wait, the answer is 42.", "42"),
        ("The answer is 3.5 apples.", "3.5 apples"),
        ("The answer is 42. Is the answer: yes?", "42"),
        ("42", "42"),
        (" $1,234.00 ", "$1,234.00"),
        ("I have 3 and 4.\nThere are 7.", None),
        ("x" * 300, None),
        (r"\boxed{42", None),
        (r"The answer is \boxed{42", None),
        ("", None),
    ],
)
def test_where_an_answer_is_sought(response, answer):
    assert find_answer(response) == answer


def test_an_answer_far_before_the_end_counts():
    assert find_answer(r"\boxed{42}" + " and more" * 10_000) == "42"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("72.", 72),
        ("+7", 7),
        ("-3", -3),
        ("\N{MINUS SIGN}3", -3),
        ("$1,234.00", 1234),
        (r"\$1,234", 1234),
        ("-$5", -5),
        ("$-5", -5),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("0042", 42),
        ("1/2", Fraction(1, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{10}{4}", Fraction(-5, 2)),
        ("18 dollars", 18),
        (r"18\text{ dollars}", 18),
        (r"10\%", 10),
        ("2+40=42", 42),
        (r"1{,}000", 1000),
        (r"1\,000", 1000),
        (r"1,\!000,\! 000", 1000000),
        ("**42**", 42),
        ("3x", None),
        ("3 or 4", None),
        ("12 hours 30 minutes", None),
        ("1,23", None),
        ("1,234,56", None),
        ("1/0", None),
        ("--3", None),
        ("-$-3", None),
        ("1e5", None),
        ("$", None),
        (".", None),
        ("None", None),
        ("I don't know.", None),
        ("", None),
        ("9" * 300, None),
        ("٣", None),
    ],
)
def test_plain_numbers_are_read_exactly_and_nothing_else_is(text, number):
    assert parse_number(text) == number


def test_cleaning_strips_what_surrounds_an_answer():
    assert clean(r"**\($72.$\)**,") == "72"
    assert clean("$a$") == "a"
    assert clean("$5") == "$5"


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 40_000,
        r"\boxed{" * 20_000 + "}" * 20_000,
        r"\boxed" + " " * 200_000,
        r"\boxed{" + "$" * 200_000 + "}",
        "{" * 200_000,
        "\\" * 200_000,
        "#### " * 40_000,
        "#### 1\n" * 30_000,
        "####" + " " * 200_000 + "\n",
        "answer is " * 20_000,
        "answer" + " " * 200_000,
        "<think>" * 30_000,
        "$" * 200_000,
    ],
    ids=lambda text: text[:12].strip(),
)
def test_the_time_grows_with_the_text_and_not_with_its_square(text):
    """200,000 characters of what a careless pattern would search over and over: hours, if quadratic."""
    start = time.monotonic()
    assert gsm8k.score(text, ["4"]).value in (0.0, 0.1)
    assert math_rule._stated(text) is None or len(text) > 0
    assert time.monotonic() - start < 3
