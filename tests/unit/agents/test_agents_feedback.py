"""What a next turn is told: real records by hand, the smallest failing trial, and never more than
4 kB."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_helpers import CREATED, attempt, candidate, proposal, verdict

from kernel_lsp.agents import feedback
from kernel_lsp.records import (
    ArgSpec,
    Attempt,
    Check,
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Evidence,
    Interval,
    Move,
    Numerics,
    Program,
    SearchJudgement,
    TargetKind,
    Timing,
    Trial,
    Workload,
    WorkloadOrigin,
)

ROWS_128 = Workload(
    name="x",
    origin=WorkloadOrigin.PRAGMA,
    inputs=(ArgSpec(name="x", dtype="float32", shape=(128, 64)),),
)


def trial(number: int, passed: bool | None, variation: str = "", **more: Any) -> Trial:
    told: dict[str, Any] = {"family": "as_given", "detail": "output 0"} | more
    return Trial(number=number, passed=passed, variation=variation, **told)


def judged(
    evaluation: Evaluation, *trials: Trial, workload: Workload = ROWS_128
) -> SearchJudgement:
    found = replace(proposal(candidate(name="c"), evaluation), workload=workload)
    kept = Evidence(
        created=CREATED,
        reference=Program(source="", entry="Model", kind=TargetKind.MODULE),
        candidate_source="",
        candidate_entry="Model",
        workload=workload,
        device="cpu",
        precision="faithful",
        require_speed=True,
        uses_triton=False,
        timeout_s=1.0,
        budget={},
        seed=1,
        trials=trials,
        evaluation=evaluation,
    )
    return SearchJudgement(proposal=found, evidence=kept)


WRONG = Evaluation(
    status=EvalStatus.WRONG_RESULT,
    device="cpu",
    detail="heavy_tailed: 3 of 64 values differ",
    checks=(
        Check(name="static-guards", passed=True),
        Check(name="values", passed=False, detail="heavy_tailed: 3 of 64 values differ"),
    ),
    seconds=1.23456,
)
FAILED = trial(
    4,
    False,
    "batch of 1",
    family="heavy_tailed",
    candidate_error=0.041234,
    tolerance=1e-4,
    reference_error=2.2e-7,
    detail="output 0: at [0, 7] 3.5, the reference 1.25, float64 1.25",
)


def told(*trials: Trial, workload: Workload = ROWS_128) -> Any:
    return feedback.digest(judged(WRONG, *trials, workload=workload))["smallest_failing_trial"]


def test_a_wrong_result_names_its_check_and_the_smallest_case() -> None:
    found = feedback.digest(
        judged(WRONG, trial(1, True), trial(1, True), trial(2, None), FAILED), 1.05
    )
    assert found == {
        "status": "wrong_result",
        "device": "cpu",
        "detail": "heavy_tailed: 3 of 64 values differ",
        "failed_checks": ["values: heavy_tailed: 3 of 64 values differ"],
        "trials": {"passed": 1, "failed": 1},
        "smallest_failing_trial": {
            "values": "heavy_tailed",
            "variation": "batch of 1",
            "what": "output 0: at [0, 7] 3.5, the reference 1.25, float64 1.25",
            "error": 0.0412,
            "allowed": 0.0001,
            "error_of_the_original": 2.2e-7,
        },
        "seconds_to_judge": 1.23,
    }


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (
            trial(9, False, "batch of 3, train() and eval() called before"),
            trial(2, False),
        ),  # 3 < 128 rows
        (trial(3, False), trial(2, False, "batch of 257")),
        (trial(3, False), trial(2, False, "transposed inputs")),  # as many rows, plainer
        (
            trial(2, False, candidate_error=2.0, tolerance=1.0, detail="worse"),
            trial(2, False, candidate_error=1.5, tolerance=1.0),
        ),
        (trial(2, False, candidate_error=1.5, tolerance=1.0), trial(2, False, tolerance=1.0)),
        (
            trial(2, False, candidate_error=1.5, tolerance=1.0),
            trial(2, False, candidate_error=9.0, detail="nothing is allowed"),
        ),
    ],
)
def test_the_smallest_failing_trial_has_fewest_rows_then_fewest_variations(
    smaller: Trial, larger: Trial
) -> None:
    assert told(larger, smaller) == told(smaller, larger) == told(smaller)


def test_a_batch_is_smaller_than_a_size_that_nobody_knows() -> None:
    unknown = replace(ROWS_128, inputs=None)
    assert told(trial(1, False), FAILED, workload=unknown)["variation"] == "batch of 1"


def test_speed_is_told_against_every_baseline_with_its_interval_and_the_roofline() -> None:
    timed = Evaluation(
        status=EvalStatus.PASSED,
        device="cuda",
        device_name="NVIDIA H200",
        timings=tuple(
            Timing(provider=name, median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=9, cold_cache=True)
            for name, ms in (("eager", 0.30004), ("compile", 0.2), ("candidate", 0.1))
        ),
        speedups={
            "eager": Interval(low=2.9, mid=3.0, high=3.1111),
            "compile": Interval(low=1.9, mid=2.0, high=2.1),
        },
        numerics=Numerics(
            candidate_error=1e-7, reference_error=2e-7, tolerance=1e-6, num_trials=12
        ),
        kernels=(
            CompiledKernel(
                name="_k", arch="sm_90", registers=255, spill_bytes=64, shared_bytes=None
            ),
        ),
        least_ms=0.05,
        checks=(Check(name="narrow-interval", passed=None, detail="still 9 % wide"),),
    )
    found = feedback.digest(judged(timed), 1.05)
    assert found == {
        "status": "passed",
        "device": "NVIDIA H200",
        "median_ms": {"eager": 0.3, "compile": 0.2, "candidate": 0.1},
        "speedup": {"eager": [2.9, 3.0, 3.11], "compile": [1.9, 2.0, 2.1]},
        "speedup_needed": 1.05,
        "roofline_share": 0.5,
        "numerics": {"error": 1e-7, "allowed": 1e-6, "error_of_the_original": 2e-7},
        "kernels": [{"name": "_k", "arch": "sm_90", "registers": 255, "spill_bytes": 64}],
        "notes": ["narrow-interval: still 9 % wide"],
    }
    one = replace(attempt(7, 2.0), proposal=proposal(candidate(name="c"), timed), parent=3)
    assert feedback.line(one) == (
        "attempt 7 from 3: right, speed 3x (2.9 to 3.11) eager, 2x (1.9 to 2.1) compile, 50% of "
        "what the"
        " memory allows"
    )


def test_without_evidence_the_verdict_speaks() -> None:
    assert (
        feedback.digest(SearchJudgement(proposal=proposal(candidate(name="c"), WRONG)))["detail"]
        == WRONG.detail
    )


def test_lines_of_what_failed_and_of_what_was_never_judged() -> None:
    failed = judged(WRONG, trial(1, True), trial(2, True), FAILED)
    told = replace(attempt(7, None), proposal=failed.proposal, feedback=feedback.digest(failed))
    assert feedback.line(told) == (
        "attempt 7: wrong_result, 2 trials passed, then heavy_tailed, batch of 1: error 0.041, "
        "allowed 0.0001"
    )
    assert feedback.line(replace(told, feedback={})) == (
        "attempt 7: wrong_result: heavy_tailed: 3 of 64 values differ"
    )
    none = Attempt(
        number=8, move=Move.REFINE, proposer="m", complaint="no\ncall", parent=7, created=CREATED
    )
    assert feedback.line(none) == "attempt 8 from 7: no call"
    untimed = replace(verdict(1.0), speedups={})
    assert feedback.line(replace(told, proposal=proposal(candidate(name="c"), untimed))) == (
        "attempt 7: right, not timed"
    )


TEXTS = st.text(max_size=3000)


@given(
    detail=TEXTS,
    checks=st.lists(st.tuples(TEXTS, st.sampled_from([True, False, None])), max_size=12),
    trials=st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=6),
    kernels=st.lists(TEXTS, max_size=12),
)
def test_whatever_a_candidate_writes_the_digest_stays_small(
    detail: str,
    checks: list[tuple[str, bool | None]],
    trials: list[tuple[str, str, bool]],
    kernels: list[str],
) -> None:
    evaluation = replace(
        WRONG,
        detail=detail,
        checks=tuple(Check(name="guard", passed=ok, detail=text) for text, ok in checks),
        kernels=tuple(
            CompiledKernel(name=name, arch="sm_90", registers=1, spill_bytes=0, shared_bytes=0)
            for name in kernels
        ),
    )
    shown = [trial(n, ok, variation, detail=text) for n, (text, variation, ok) in enumerate(trials)]
    found = feedback.digest(judged(evaluation, *shown))
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= feedback.MAX_BYTES
    assert found["status"] == "wrong_result"
    assert ("smallest_failing_trial" in found) == any(not ok for _, _, ok in trials)
    line = feedback.line(replace(attempt(1, None), complaint=detail, feedback=found))
    assert "\n" not in line and len(line) <= feedback.MAX_LINE
