"""The sentinels: limits by precision, messages that teach, and news only when there are any."""

from __future__ import annotations

import math

import pytest

from lightrft.config.flags import GROUPS
from lightrft.observability.sentinels import (
    CALM_STEPS,
    CHECKS,
    Check,
    Dtype,
    SentinelBoard,
    Verdict,
    render,
    run_sentinels,
)

HEALTHY = {
    "policy/ratio_max_deviation": 2e-6,
    "policy/first_kl": -3e-8,
    "policy/kl": 1e-9,
    "rollout/logprob_gap_mean": 3e-6,
    "rollout/logprob_gap_max": 2e-5,
    "rollout/zero_spread_share": 0.25,
    "rollout/truncated_share": 0.0,
    "rollout/unparsed_share": 0.02,
    "rollout/excluded_share": 0.0,
    "train/skipped_steps": 0.0,
}


def statuses(metrics: dict[str, float], dtype: Dtype = "fp32", first: bool = True) -> dict[str, str]:
    return {v.name: v.status for v in run_sentinels(metrics, dtype, first)}


def test_a_healthy_first_step_is_ok_in_every_check() -> None:
    found = statuses(HEALTHY)
    assert list(found) == [check.name for check in CHECKS]
    assert set(found.values()) == {"ok"}


@pytest.mark.parametrize(
    ("metric", "value", "name", "status"),
    [
        ("policy/ratio_max_deviation", 2e-3, "ratio", "warn"),
        ("policy/ratio_max_deviation", 0.5, "ratio", "fail"),
        ("policy/first_kl", 1e-5, "first_kl", "warn"),
        ("policy/first_kl", -1e-3, "first_kl", "fail"),  # a KL below 0 is as wrong as one above
        ("policy/kl", 0.1, "reference_kl", "fail"),
        ("rollout/logprob_gap_mean", 1e-3, "gap_mean", "warn"),
        ("rollout/logprob_gap_max", 1.07, "gap_max", "fail"),
        ("rollout/zero_spread_share", 0.7, "zero_spread", "warn"),
        ("rollout/zero_spread_share", 1.0, "zero_spread", "fail"),
        ("rollout/truncated_share", 0.2, "truncated", "warn"),
        ("rollout/unparsed_share", 0.95, "unparsed", "fail"),
        ("rollout/excluded_share", 0.01, "excluded", "warn"),
        ("train/skipped_steps", 1.0, "skipped_steps", "warn"),
        ("rollout/logprob_gap_mean", math.nan, "gap_mean", "fail"),
    ],
)
def test_one_bad_number_changes_one_verdict(metric: str, value: float, name: str, status: str) -> None:
    found = statuses(HEALTHY | {metric: value})
    assert found.pop(name) == status
    assert set(found.values()) == {"ok"}


def test_bf16_has_room_for_its_rounding_and_fp32_has_not() -> None:
    noisy = HEALTHY | {
        "policy/ratio_max_deviation": 0.1,
        "policy/first_kl": 5e-5,
        "policy/kl": 1e-4,
        "rollout/logprob_gap_mean": 0.0068,
        "rollout/logprob_gap_max": 0.4,
    }
    assert set(statuses(noisy, "bf16").values()) == {"ok"}
    assert {n for n, s in statuses(noisy, "fp32").items() if s != "ok"} == {
        "ratio",
        "first_kl",
        "reference_kl",
        "gap_mean",
        "gap_max",
    }


def test_the_reference_is_compared_only_before_the_first_update() -> None:
    moved = HEALTHY | {"policy/kl": 0.1}
    assert "reference_kl" not in statuses(moved, first=False)
    assert "reference_kl" not in SentinelBoard("fp32", resumed=True).check(moved)
    board = SentinelBoard("fp32")
    assert board.check(HEALTHY)["sentinel/reference_kl"] == 0.0
    assert "sentinel/reference_kl" not in board.check(moved)


def test_a_check_without_its_metric_gives_no_verdict() -> None:
    assert [v.name for v in run_sentinels({"train/skipped_steps": 0.0}, "fp32", True)] == ["skipped_steps"]
    assert run_sentinels({}, "bf16", True) == []


def test_a_bad_verdict_says_the_limit_it_crossed_and_what_to_do() -> None:
    (verdict,) = run_sentinels({"rollout/truncated_share": 0.2}, "bf16", False)
    assert (verdict.value, verdict.threshold) == (0.2, 0.1)
    assert "cut by the length limit" in verdict.message
    assert "--generate_max_len" in verdict.message
    (worse,) = run_sentinels({"rollout/truncated_share": 0.7}, "bf16", False)
    assert worse.threshold == 0.5


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_advice_names_flags_that_exist(check: Check) -> None:
    known = {flag.name for group in GROUPS for flag in group.flags}
    words = [w.strip(".,;()") for w in check.advice.split()]
    assert {w.removeprefix("--") for w in words if w.startswith("--")} <= known
    assert check.fp32[0] < check.fp32[1]
    assert check.bf16[0] < check.bf16[1]


def test_the_table_is_aligned_and_fits_the_screen() -> None:
    text = render(run_sentinels(HEALTHY | {"rollout/unparsed_share": 0.5}, "fp32", True))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert next(line for line in lines if "unparsed" in line).startswith(
        "  WARN unparsed      0.5       >  0.3     share"
    )
    starts = {line.index(c.meaning[:15]) for c in CHECKS for line in lines if f" {c.name} " in line}
    assert len(starts) == 1


def test_what_is_no_number_is_rendered_as_such() -> None:
    assert "nan       ?  0.5" in render([Verdict("gap_max", "fail", math.nan, 0.5, "m")])


def test_the_board_prints_all_at_first_and_then_only_news() -> None:
    board = SentinelBoard("fp32")
    logged = board.check(HEALTHY)
    assert logged["sentinel/truncated"] == 0.0
    assert board.changes().count("\n") == len(CHECKS)
    board.check(HEALTHY)
    assert board.changes() == ""
    assert board.check(HEALTHY | {"rollout/truncated_share": 0.9})["sentinel/truncated"] == 2.0
    news = board.changes()
    assert "FAIL truncated" in news
    assert "unparsed" not in news
    assert board.changes() == ""


def test_a_recovery_is_news_only_when_it_lasts() -> None:
    board = SentinelBoard("fp32")
    bad = HEALTHY | {"rollout/truncated_share": 0.2}
    board.check(bad)
    board.changes()
    said = []
    for metrics in [HEALTHY, bad] + [HEALTHY] * CALM_STEPS + [bad]:
        board.check(metrics)
        said.append(board.changes())
    assert [bool(s) for s in said] == [False] * (2 + CALM_STEPS - 1) + [True, True]
    assert "ok   truncated" in said[-2]
    assert "WARN truncated" in said[-1]


def test_a_check_that_appears_later_is_news() -> None:
    board = SentinelBoard("fp32")
    board.check({"train/skipped_steps": 0.0})
    board.changes()
    board.check({"train/skipped_steps": 0.0, "rollout/logprob_gap_mean": 1e-6})
    assert "gap_mean" in board.changes()


def test_the_last_table_counts_how_often_something_was_wrong() -> None:
    board = SentinelBoard("fp32")
    assert board.table() == "sentinels: no step was taken"
    for share in (0.0, 0.2, 0.2, 0.9):
        board.check({"rollout/truncated_share": share})
    table = board.table()
    assert "FAIL truncated" in table
    assert table.endswith("  truncated: warned in 2 and failed in 1 of 4 steps")
