"""What each rule gives for which response. Expected values are worked out by hand."""

import inspect
import re
import subprocess
import sys

import pytest

from lightrft import registry
from lightrft.rewards.rules import exact_match, gsm8k
from lightrft.rewards.rules import format as format_rule
from lightrft.rewards.rules import math as math_rule
from lightrft.rewards.worker import RULES

FAR = "2+40=42\n#### 42\n" + "And so we see that this is how it is done. " * 10
THOUGHT = r"<think>6*7</think> \boxed{42}"


@pytest.mark.parametrize("name", registry.names(RULES))
def test_every_rule_keeps_the_contract(name):
    rule = registry.load(RULES, name, "--reward")
    assert list(inspect.signature(rule.score).parameters) == ["response", "references"]
    assert isinstance(rule.IN_PROCESS, bool)
    assert isinstance(rule.NEEDS_REFERENCES, bool)
    thought, gold = (r"\boxed{B}", "B") if name == "multiple_choice" else (THOUGHT, "42")
    verdict = rule.score(response=thought, references=[gold])
    assert set(verdict.parts) == set(rule.PARTS)
    assert verdict.status == "ok"
    if rule.NEEDS_REFERENCES and name != "exact_match":
        assert rule.check_reference("I don't know") is not None
        assert rule.score(response=thought, references=["I don't know"]).value is None


def test_rules_import_no_torch():
    code = "import sys; from lightrft import registry; from lightrft.rewards.worker import RULES; "
    code += (
        "[registry.load(RULES, name, '') for name in registry.names(RULES)]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("response", "gold", "answer", "form", "status"),
    [
        (FAR, "42", 1, 1, "ok"),
        ("#### 42", "6*7=42\n#### 42", 1, 1, "ok"),
        (THOUGHT, "42", 1, 1, "ok"),
        (r"\boxed{42}", "42", 1, 0, "ok"),
        (r"\boxed{42} <think>late</think>", "42", 1, 0, "ok"),
        (r"<think>6*7</think> \boxed{41}", "42", 0, 1, "ok"),
        (r"\boxed{1} or \boxed{42}", "42", 1, 0, "ok"),
        (r"\boxed{\frac{1}{2}}", "0.5", 1, 0, "ok"),
        (r"\boxed{18\text{ dollars}}", "18", 1, 0, "ok"),
        ("$1,234.00", "1234", 1, 0, "ok"),
        ("+7", "7", 1, 0, "ok"),
        ("-3", "3", 0, 0, "ok"),
        ("3", "-3", 0, 0, "ok"),
        ("The answer is 72.", "72", 1, 0, "ok"),
        ("", "42", 0, 0, "unparsed"),
        ("None", "42", 0, 0, "unparsed"),
        ("I don't know.", "42", 0, 0, "unparsed"),
        ("There were 42 of them, I think, or maybe\n43.", "42", 0, 0, "unparsed"),
        (r"<think>hm</think> \boxed{many}", "42", 0, 1, "unparsed"),
    ],
)
def test_gsm8k(response, gold, answer, form, status):
    verdict = gsm8k.score(response, [gold])
    assert verdict.parts == {"answer": answer, "format": form}
    assert verdict.value == pytest.approx(0.9 * answer + 0.1 * form, abs=1e-12)
    assert verdict.status == status


def test_gsm8k_takes_any_of_the_references_and_ignores_unreadable_ones():
    assert gsm8k.score(r"\boxed{2}", ["one", "2"]).parts["answer"] == 1
    assert gsm8k.check_reference("no number here") == "the reference 'no number here' states no number"
    assert gsm8k.check_reference("so 6*7=42\n#### 42") is None


@pytest.mark.parametrize(
    ("response", "gold", "value", "status"),
    [
        (FAR, "42", 1, "ok"),
        (THOUGHT, "42", 1, "ok"),
        (r"first \boxed{7}, no: \boxed{\frac{1}{2}}", "0.5", 1, "ok"),
        (r"\boxed{\dfrac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}", 1, "ok"),
        (r"\boxed{1,234.00}", "1234", 1, "ok"),
        (r"\boxed{\$1,234.00}", "1234", 1, "ok"),
        ("$1,234.00", "1234", 1, "ok"),
        ("+7", "7", 1, "ok"),
        ("-3", "3", 0, "ok"),
        (r"\boxed{3}", "-3", 0, "ok"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1, "ok"),
        (r"\boxed{x=5}", "5", 1, "ok"),
        (r"\boxed{x=5}", "x = 5.0", 1, "ok"),
        (r"\boxed{x=5}", "y=5", 0, "ok"),
        (r"\boxed{0.333333}", r"\frac{1}{3}", 1, "ok"),
        (r"\boxed{3x}", "3", 0, "ok"),
        (r"\boxed{11111111100}", r"11,\! 111,\! 111,\! 100", 1, "ok"),
        (r"\boxed{12/5525}", r"\frac{12}{5,\!525}", 1, "ok"),
        (r"\boxed{3 - \frac{1}{2} ]}", "0.5", 0, "unparsed"),
        (r"\boxed{\sum \frac{1}{2} $}", "0.5", 0, "unparsed"),
        (r"\boxed{seat}", "east", 0, "ok"),
        (r"\boxed{East}", "east", 1, "ok"),
        (r"\boxed{Monday}", r"\text{Monday}", 1, "ok"),
        (r"\boxed{I don't know}", "42", 0, "unparsed"),
        (r"\boxed{\text{(B)}}", "B", 1, "ok"),
        (r"\boxed{\frac{\pi}{4} - \sqrt{2}}", r"\frac \pi4 - \sqrt2", 1, "ok"),
        (r"\boxed{\frac{\pi}{3}}", r"\frac\pi 4", 0, "ok"),
        (r"\boxed{(3, \pi/2)}", r"\left( 3, \frac{\pi}{2} \right)", 1, "ok"),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1, "ok"),
        (r"\boxed{42}" + " and more" * 1000, "42", 1, "ok"),
        ("The answer is 42 clips.", "42", 1, "ok"),
        (r"It is $p - q$ or so, but the final answer is $q - p$.", "q - p", 1, "ok"),
        ("p - q", "p - q", 1, "ok"),
        ("42", r"We find $6 \cdot 7 = \boxed{42}$.", 1, "ok"),
        ("", "42", 0, "unparsed"),
        ("None", "42", 0, "unparsed"),
        ("I don't know.", "42", 0, "unparsed"),
        (r"\boxed{}", "42", 0, "unparsed"),
        (r"\boxed{" + "1+" * 600 + "1}", "601", 0, "unparsed"),
        ("Some 42 of them\nperhaps", "42", 0, "unparsed"),
    ],
)
def test_math(response, gold, value, status):
    verdict = math_rule.score(response, [gold])
    assert (verdict.value, verdict.status) == (value, status)


def test_math_never_rewards_an_unreadable_reference_even_for_repeating_it():
    assert math_rule.score(r"\boxed{I don't know}", ["I don't know"]).value is None
    assert "cannot read the reference" in math_rule.check_reference("I don't know")
    assert math_rule.score(r"\boxed{2}", ["??", "2"]).value == 1


def test_math_evaluates_no_text_as_code(monkeypatch):
    """sympy's parse_expr ends in eval; nothing but numerals may reach it."""
    from sympy.parsing import sympy_parser

    evaluated = []
    evaluate = sympy_parser.eval_expr
    monkeypatch.setattr(
        sympy_parser, "eval_expr", lambda code, *rest: evaluated.append(code) or evaluate(code, *rest)
    )
    math_rule._parse.cache_clear()
    assert math_rule.score("The answer is 6*7*10000.", ["420000"]).value == 1
    assert math_rule.score("6*7+1", ["43"]).value == 1
    assert math_rule.score(r"\boxed{__import__('os').getpid()}", ["1"]).value == 0
    assert set(evaluated) >= {"Integer (6 )", "Integer (7 )"}  # the trap is where it should be
    assert all(re.fullmatch(r"(Integer|Float) \('?[0-9.]+'? ?\)", code) for code in evaluated), evaluated


def test_math_says_nothing_on_the_screen(caplog, capfd):
    math_rule.prepare()
    for text in (r"\boxed{\frac{1}{}", r"\boxed{\left( 1}", r"\boxed{]$^}"):
        assert math_rule.score(text, ["1"]).value == 0
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("response", "value", "status"),
    [
        ("forty two", 1, "ok"),
        ("  forty\n two ", 1, "ok"),
        ("42", 1, "ok"),
        ("Forty two", 0, "ok"),
        ("forty two.", 0, "ok"),
        ("fortytwo", 0, "ok"),
        ("", 0, "unparsed"),
        (" \n", 0, "unparsed"),
    ],
)
def test_exact_match(response, value, status):
    verdict = exact_match.score(response, ["forty two", "42"])
    assert (verdict.value, verdict.status) == (value, status)


def test_exact_match_refuses_a_reference_that_rewards_silence():
    assert exact_match.check_reference(" ") == "the reference is empty"
    assert exact_match.check_reference("x") is None


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (THOUGHT, 1),
        ("<think>\nlong\n</think>\n\nso \\boxed{\\frac{1}{2}} it is", 1),
        (r"<think>\boxed{1}</think> \boxed{2}", 1),
        (r"<think>\boxed{1}</think> and that is it", 0),
        (r"\boxed{2} <think>6*7</think>", 0),
        (r"6*7</think> \boxed{42}", 0),
        (r"<think>6*7 \boxed{42}", 0),
        (r"<think>6*7</think> \boxed{}", 0),
        (r"<think>6*7</think> \boxed{4", 0),
        (r"</think><think> \boxed{4}", 0),
        (r"\boxed{42}", 0),
        ("", 0),
    ],
)
def test_format(response, value):
    verdict = format_rule.score(response, [])
    assert (verdict.value, verdict.status) == (value, "ok")
