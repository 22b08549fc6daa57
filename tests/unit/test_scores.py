"""Scores of a suite, with numbers worked by hand."""

import math
from typing import Any

import pytest

from kernel_lsp import scores

MIXED = [2.0, 0.5, None, 1.0]


def offered(eager: float, compiled: float, **more: Any) -> dict[str, Any]:
    speedups = {"eager": {"mid": eager}, "compile": {"mid": compiled}}
    return {"status": "offered", "note": "", "ms": {}, "speedups": speedups, **more}


def other(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "note": "", "ms": {}, "speedups": {}, **more}


def test_failures_stay_in_the_denominator_and_the_threshold_is_strict() -> None:
    assert scores.fast_p(MIXED, 0.0) == 0.75
    assert scores.fast_p(MIXED, 1.0) == 0.25
    assert scores.fast_p([1.05, 1.0500001], 1.05) == 0.5


def test_the_geometric_mean_is_over_correct_candidates_only() -> None:
    assert math.isclose(scores.geomean(MIXED) or 0, 1.0)  # (2 * 0.5 * 1) ** (1/3)


def test_amsr_counts_slowdowns_and_failures_as_nothing() -> None:
    assert scores.amsr(MIXED) == 0.75  # (2 + 0 + 0 + 1) / 4


def test_nothing_measured_is_unknown_and_never_one() -> None:
    assert scores.geomean([None]) is None
    assert scores.amsr([]) is None
    assert scores.fast_p([], 1.0) is None
    assert scores.fast_p([None], 0.0) == 0.0


def test_the_best_baseline_is_the_one_with_the_smallest_speedup() -> None:
    row = offered(3.0, 1.5)
    assert scores.speedup(row, "eager") == 3.0 and scores.speedup(row, "best") == 1.5


@pytest.mark.parametrize(
    ("status", "expected"),
    [("silent", 1.0), ("failed", None), ("wrong_result", None), ("no_candidate", None)],
)
def test_silence_leaves_the_code_as_it_was_and_a_failure_is_no_speedup(status, expected) -> None:
    assert scores.speedup(other(status), "best") == expected


def test_groups_are_all_folders_and_families() -> None:
    rows = {
        "operators/a.py": offered(2.0, 4.0, family="norm"),
        "operators/b.py": other("silent", family="norm"),
        "chains/c.py": other("failed", family="conv2d"),
    }
    made = scores.groups(rows)
    assert list(made) == ["all", "chains", "chains/conv2d", "operators", "operators/norm"]
    norm = made["operators/norm"]["best"]
    assert (norm["tasks"], norm["correct"], norm["fast_1"], norm["fast_2"]) == (2, 1.0, 0.5, 0.0)
    assert math.isclose(norm["geomean"], math.sqrt(2.0))  # 2 against eager, and one silent
    assert made["all"]["best"]["correct"] == pytest.approx(2 / 3)
    assert made["all"]["facts"]["failed"] == 1


def test_an_offer_that_is_slower_than_the_best_baseline_is_counted() -> None:
    rows = [offered(2.0, 0.97), offered(2.0, 0.99), other("silent")]
    assert scores.facts(rows)["slower_than_best"] == 1
    assert scores.facts(rows)["share_offered"] == pytest.approx(2 / 3)


def test_medians_of_time_leave_out_the_cache() -> None:
    rows = [
        offered(2.0, 2.0, first_verified_s=10.0, total_s=20.0),
        offered(2.0, 2.0, first_verified_s=0.1, total_s=0.1, cached=True),
        other("silent", first_verified_s=None, total_s=4.0),
    ]
    found = scores.facts(rows)
    assert found["first_verified_s"] == 10.0 and found["total_s"] == 12.0


def test_roofline_share_and_peak_memory_are_medians_over_what_was_offered() -> None:
    rows = [
        offered(2.0, 2.0, least_ms=0.5, peak_bytes={"eager": 400, "candidate": 100})
        | {"ms": {"candidate": 1.0}},
        offered(2.0, 2.0, least_ms=None, peak_bytes={"eager": 0, "candidate": 8})
        | {"ms": {"candidate": 2.0}},
        other("silent"),
    ]
    found = scores.facts(rows)
    assert found["roofline_share"] == 0.5 and found["peak_memory"] == 0.25


def test_no_rows_have_no_scores() -> None:
    made = scores.groups({})
    assert made["all"]["best"]["tasks"] == 0 and made["all"]["facts"]["share_offered"] is None
