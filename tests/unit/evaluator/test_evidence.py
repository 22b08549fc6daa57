"""Evidence of verdicts: round trips, refusals of what is no evidence, and whether a verdict still
holds."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import evidence, gate, repeat
from kernel_lsp.evaluator.evidence import gather, keep, parse, read, request_of, with_seed, write
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.evaluator.request import EvaluationBudget, EvaluationRequest, Precision
from kernel_lsp.presenter.verdicts import repetition_lines
from kernel_lsp.records import (
    EVIDENCE_VERSION,
    EvalStatus,
    Evaluation,
    Evidence,
    Interval,
    Program,
    TargetKind,
    Timing,
    Trial,
    Workload,
    WorkloadOrigin,
)

REQUEST = EvaluationRequest(
    reference=Program(source="def f(x): return x\n", entry="f", kind=TargetKind.FUNCTION),
    candidate_source="def f(x): return x + 0  # \u00e9\n",
    candidate_entry="f",
    workload=Workload(name="w", origin=WorkloadOrigin.PRAGMA),
    seed=7,
    precision=Precision.TF32,
    budget=EvaluationBudget(timing_s=1.5, memory_bytes=2**30),
)
PASSED = Evaluation(
    status=EvalStatus.PASSED,
    device="cpu",
    device_name="a processor",
    speedups={"eager": Interval(low=1.8, mid=1.9, high=2.0)},
    environment={"torch": "2.13", "threads": 2},
)


def evidence_of(evaluation: Evaluation = PASSED, **trials: bool | None) -> Evidence:
    found = PartialEvaluation()
    for number, (family, passed) in enumerate(trials.items(), start=1):
        found.trials.append(
            {"number": number, "family": family, "passed": passed, "candidate_error": 1e-7}
        )
    found.samples_ms["eager"] = {"call": [1.0, 2, 9.5], "device": [0.5, 1, 8], "dropped": [2]}
    found.samples_ms["candidate"] = {"call": [0.5, 1.0, 4.0]}
    return gather(REQUEST, found, evaluation)


def speed(low: float, mid: float, high: float) -> Evaluation:
    return replace(PASSED, speedups={"eager": Interval(low=low, mid=mid, high=high)})


def test_what_is_not_right_has_no_times() -> None:
    """Nor anything else that was measured before its error was seen."""
    found = PartialEvaluation(
        timings=(Timing(provider="candidate", median_ms=1.0, p20_ms=1.0, p80_ms=1.0, num_reps=9,
                        cold_cache=True),),
        speedups={"eager": Interval(low=1.0, mid=1.0, high=1.0)},
        shapes={("x f32[4]",): None}, peak_bytes={"eager": 1}, least_ms=0.5, unsure="noise",
    )  # fmt: skip
    right = gate._evaluation(REQUEST, found, EvalStatus.PASSED, "")
    assert right.timings and right.speedups and right.peak_bytes
    assert (right.least_ms, right.unsure, right.shapes) == (0.5, "noise", (("x f32[4]",),))
    wrong = gate._evaluation(REQUEST, found, EvalStatus.WRONG_RESULT, "off")
    assert not (wrong.timings or wrong.speedups or wrong.peak_bytes or wrong.shapes)
    assert (wrong.least_ms, wrong.unsure, wrong.detail) == (None, "", "off")


# --- the document -----------------------------------------------------------------------------


def test_a_document_holds_everything_and_comes_back_the_same(tmp_path: Path) -> None:
    before = evidence_of(as_given=True, shifted=None)
    write(tmp_path / "e.json", before)
    assert read(tmp_path / "e.json") == before
    assert [path.name for path in tmp_path.iterdir()] == ["e.json"]
    data = json.loads((tmp_path / "e.json").read_text())
    assert (data["schema_version"], data["seed"], data["precision"]) == (
        EVIDENCE_VERSION,
        7,
        "tf32",
    )
    assert data["samples"][0] == {
        "provider": "eager",
        "call_ms": [1.0, 2.0, 9.5],
        "device_ms": [0.5, 1.0, 8.0],
        "dropped_rounds": [2],
    }
    assert data["samples"][1]["device_ms"] is None
    assert [trial["passed"] for trial in data["trials"]] == [True, None]


def test_the_request_comes_back_with_its_seed_and_never_with_a_foreign_interpreter() -> None:
    foreign = replace(evidence_of(), python="/bin/false")
    assert request_of(foreign) == REQUEST


def test_a_request_gets_a_seed_of_its_own_and_keeps_one_that_it_repeats() -> None:
    fresh = [with_seed(replace(REQUEST, seed=None)).seed for _ in range(2)]
    assert None not in fresh and fresh[0] != fresh[1]
    assert with_seed(REQUEST).seed == 7


@given(st.floats(), st.floats())
def test_numbers_that_json_does_not_know_become_unknown_or_huge(
    error: float, tolerance: float
) -> None:
    found = PartialEvaluation()
    found.trials.append({"candidate_error": error, "tolerance": tolerance})
    text = wire.dumps(gather(REQUEST, found, PASSED))
    assert "NaN" not in text and "Infinity" not in text
    (trial,) = parse(text.encode()).trials
    assert (trial.candidate_error is None) == (error != error)


def test_a_document_of_a_newer_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = wire.to_json(evidence_of()) | {
        "schema_version": EVIDENCE_VERSION + 1,
        "trials": "another shape",
    }
    with pytest.raises(EvaluationError, match="schema version 2") as caught:
        parse(json.dumps(data).encode())
    assert caught.value.remedy == "update kernel-lsp"


def test_unknown_keys_are_ignored() -> None:
    before = evidence_of()
    data = wire.to_json(before) | {"something_new": [1]}
    assert parse(json.dumps(data).encode()) == before


@pytest.mark.parametrize(
    "change",
    [
        {"device": "tpu"},
        {"precision": "exact"},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"timeout_s": 1e9},
        {"budget": {"call_s": float("inf")}},
        {"budget": {"call_s": "long"}},
        {"budget": {"compile_s": -1}},
        {"budget": {"memory_bytes": -5}},
    ],
    ids=str,
)
def test_a_document_that_asks_for_what_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "e.json").write_text(json.dumps(wire.to_json(evidence_of()) | change))
    with pytest.raises(EvaluationError, match="could not judge") as caught:
        read(tmp_path / "e.json")
    assert caught.value.remedy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(wire.to_json(evidence_of()))), json_values)
def test_one_damaged_field_is_refused_or_read_and_never_crashes(name: str, value: Any) -> None:
    content = json.dumps(wire.to_json(evidence_of(as_given=True)) | {name: value}).encode()
    try:
        request_of(parse(content))
    except EvaluationError as error:
        assert "could not judge" in error.cause and error.remedy


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_no_evidence(content: bytes) -> None:
    with pytest.raises(EvaluationError, match="could not judge") as caught:
        parse(content)
    assert caught.value.remedy


@given(st.integers(min_value=0))
def test_a_document_cut_anywhere_is_refused(place: int) -> None:
    content = wire.dumps(evidence_of()).encode()
    with pytest.raises(EvaluationError, match="no evidence"):
        parse(content[: place % len(content)])


def test_a_document_nested_without_end_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no evidence"):
        parse(b'{"schema_version": 1, "seed": ' + b"[" * 200_000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "no regular file"),
        (lambda path: os.mkfifo(path), "no regular file"),
        (lambda path: (path.touch(), os.truncate(path, evidence.MAX_BYTES + 1)), "at most 32"),
    ],
    ids=["missing", "folder", "pipe", "huge"],
)
def test_what_is_no_file_of_evidence_is_refused_at_once(
    tmp_path: Path, make: Any, words: str
) -> None:
    make(tmp_path / "e.json")
    with pytest.raises(EvaluationError, match=words) as caught:
        read(tmp_path / "e.json")
    assert caught.value.remedy


def test_a_name_with_a_null_byte_is_refused() -> None:
    with pytest.raises(EvaluationError, match="could not judge"):
        read(Path("a\0b"))


def test_what_cannot_be_written_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="No such file or directory"):
        write(tmp_path / "no-folder" / "e.json", evidence_of())


# --- documents beside proposals ---------------------------------------------------------------


def test_kept_documents_stay_few_and_the_newest_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_KEPT_FILES", 3)
    for age in range(5):
        path = keep(tmp_path / "evidence", f"p{age}", evidence_of())
        os.utime(path, (1000 + age, 1000 + age))
    assert {path.stem for path in (tmp_path / "evidence").iterdir()} == {"p2", "p3", "p4"}
    assert read(tmp_path / "evidence" / "p4.json").seed == 7


def test_of_a_document_that_is_too_large_or_has_no_place_is_said_why(tmp_path: Path) -> None:
    large = replace(evidence_of(), candidate_source="#" * (evidence.MAX_KEPT_BYTES + 1))
    with pytest.raises(EvaluationError, match=r"is not kept: it has .* MiB"):
        keep(tmp_path, "large", large)
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match=r"is not kept in .*: File exists"):
        keep(tmp_path / "file", "p", evidence_of())


# --- does it still hold? ----------------------------------------------------------------------


def test_the_same_evidence_holds() -> None:
    before = evidence_of(as_given=True)
    repetition = repeat.compare(before, before)
    assert repetition.holds is True
    assert list(repetition_lines(repetition))[-1] == "the verdict holds"


@pytest.mark.parametrize(
    ("then", "today", "holds"),
    [
        (speed(1.8, 1.9, 2.0), speed(1.75, 1.85, 1.95), True),
        (speed(1.8, 1.9, 2.0), speed(1.2, 1.3, 1.4), True),  # another number, the same claim
        (speed(1.8, 1.9, 2.0), speed(1.02, 1.3, 1.4), False),  # 1.02 < 1.05: no claim any more
        (speed(1.0, 1.02, 1.04), speed(1.0, 1.01, 1.03), True),  # never claimed
        (speed(1.0, 1.02, 1.04), speed(1.2, 1.3, 1.4), False),  # claimed today only
        (PASSED, replace(PASSED, status=EvalStatus.WRONG_RESULT, speedups={}), False),
        (
            replace(PASSED, status=EvalStatus.CHEATED),
            replace(PASSED, status=EvalStatus.CHEATED),
            True,
        ),
        (PASSED, replace(PASSED, status=EvalStatus.NOT_RUN), None),
        (PASSED, replace(PASSED, device_name="another processor"), None),
    ],
)
def test_a_verdict_holds_when_outcome_and_claim_are_the_same(
    then: Evaluation, today: Evaluation, holds: bool | None
) -> None:
    assert repeat.compare(evidence_of(then), evidence_of(today)).holds is holds


def test_the_threshold_is_the_one_that_was_asked_for() -> None:
    then, today = (replace(evidence_of(speed(low, 1.9, 2.0)), threshold=1.5) for low in (1.8, 1.4))
    assert repeat.compare(then, today).holds is False


def test_a_trial_that_falls_otherwise_breaks_the_verdict_and_is_named() -> None:
    then, today = (
        evidence_of(as_given=True, shifted=True),
        evidence_of(as_given=True, shifted=False),
    )
    repetition = repeat.compare(then, today)
    assert repetition.holds is False
    assert "shifted differs" in next(fact.now for fact in repetition.facts if fact.name == "trials")


def test_trials_that_another_version_does_not_draw_decide_nothing() -> None:
    then, today = evidence_of(as_given=True, shifted=True), evidence_of(as_given=True)
    repetition = repeat.compare(then, today)
    assert repetition.holds is True
    assert next(fact.same for fact in repetition.facts if fact.name == "trials") is None


def test_the_trial_nearest_to_its_limit_is_told() -> None:
    trials = tuple(
        Trial(number=n, family="f", candidate_error=error, tolerance=4e-6, passed=True)
        for n, error in enumerate((1e-6, 3e-6, 2e-6))
    )
    then = replace(evidence_of(), trials=trials)
    fact = next(f for f in repeat.compare(then, then).facts if f.name == "largest error / allowed")
    assert (fact.before, fact.same) == ("0.75", None)


def test_changed_versions_and_intervals_that_moved_apart_are_told() -> None:
    today = replace(speed(1.2, 1.3, 1.4), environment={"torch": "2.14"})
    lines = list(repetition_lines(repeat.compare(evidence_of(), evidence_of(today))))
    assert any("torch" in line and "2.13" in line and "2.14" in line for line in lines)
    assert any("1.9x (1.8–2)" in line and "do not overlap" in line for line in lines)


def test_a_document_cannot_hold_whoever_judges_it() -> None:
    """A pull request's evidence asked for a day and a petabyte, and got them."""
    greedy = {"load_s": 86_400.0, "call_s": 86_400.0, "compile_s": 86_400.0, "timing_s": 86_400.0}
    asked = replace(
        evidence_of(as_given=True), timeout_s=86_400.0, budget={**greedy, "memory_bytes": 2**50}
    )
    request, ours = request_of(asked, timeout_s=77.0), EvaluationBudget()
    assert request.timeout_s == 77.0 and request.budget.timing_s == ours.timing_s
    assert request.budget.load_s <= 4 * ours.load_s and request.budget.call_s <= 4 * ours.call_s
    assert request.budget.compile_s <= 4 * ours.compile_s
    assert request.budget.memory_bytes is None, "this machine's own limit counts"
    assert request_of(asked).timeout_s <= 4 * 300.0
    modest = replace(asked, timeout_s=5.0, budget={"call_s": 2.0, "memory_bytes": 2**30})
    less = request_of(modest)
    assert (less.timeout_s, less.budget.call_s, less.budget.memory_bytes) == (5.0, 2.0, 2**30)
