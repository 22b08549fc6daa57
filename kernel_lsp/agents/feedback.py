"""What a model reads of its attempts: a verdict as a small JSON object, and as one line.

Everything in it was measured or checked by the gate. Of failed trials the smallest is shown,
because it is the easiest to think about: fewest rows first, then fewest variations, then the
largest error. Texts may hold what a candidate wrote (names of exceptions); whoever puts them into
a prompt quotes them. Not covered: where it stands in a prompt (prompts.py), and the values of
inputs, which no model sees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from kernel_lsp.records import (
    Attempt,
    CompiledKernel,
    EvalStatus,
    Evaluation,
    Interval,
    Json,
    SearchJudgement,
    Timing,
    Trial,
    Workload,
)

MAX_BYTES = 4096
"""Of one digest as JSON in UTF-8: about 1,500 tokens, and the archive keeps it."""
MAX_TEXT = 800
"""Characters of one text: a traceback's last line and the place where values differ fit."""
MAX_KERNELS, MAX_CHECKS = 8, 6
MAX_LINE = 600
"""Characters of one line; a complaint of several problems fits."""
DIGITS = 3
_BATCH = re.compile(r"batch of (\d+)")


def digest(judged: SearchJudgement, threshold: float | None = None) -> Json:
    """What the next turn reads of a verdict, without empty parts. ``threshold``: the speedup
    asked for."""
    evaluation = judged.proposal.evaluation
    trials = judged.evidence.trials if judged.evidence else ()
    record: Json = {
        "status": evaluation.status.value,
        "device": evaluation.device_name or evaluation.device,
        "detail": _text(evaluation.detail),
        "failed_checks": [
            f"{check.name}: {_text(check.detail, 300)}"
            for check in evaluation.checks
            if check.passed is False
        ][:MAX_CHECKS],
        "trials": _tally(trials),
        "smallest_failing_trial": _failing(trials, judged.proposal.workload),
        "median_ms": _medians(evaluation.timings),
        "speedup": {name: _interval(found) for name, found in evaluation.speedups.items()},
        "speedup_needed": threshold if evaluation.speedups else None,
        "median_ms_without_launches": _medians(evaluation.device_timings),
        "roofline_share": _round_number(evaluation.roofline_share),
        "numerics": _numerics(evaluation),
        "kernels": [_kernel(kernel) for kernel in evaluation.kernels][:MAX_KERNELS],
        "notes": [
            f"{check.name}: {_text(check.detail, 200)}"
            for check in evaluation.checks
            if check.passed is None and check.detail
        ][:MAX_CHECKS],
        "seconds_to_judge": _round_number(evaluation.seconds),
    }
    return _fit_into_limit(
        {key: value for key, value in record.items() if value not in (None, "", [], {})}
    )


def line(attempt: Attempt) -> str:
    """``attempt 7: wrong_result, 3 trials passed, then heavy_tailed, batch of 1: error 4, allowed
    1``."""
    start = f"attempt {attempt.number}" + (
        f" from {attempt.parent}" if attempt.parent is not None else ""
    )
    return _text(
        f"{start}: {'; '.join(filter(None, (_result(attempt), attempt.complaint)))}", MAX_LINE
    )


def _result(attempt: Attempt) -> str:
    if attempt.proposal is None:
        return "" if attempt.complaint else "nothing to judge"
    evaluation = attempt.proposal.evaluation
    if evaluation.status is not EvalStatus.PASSED:
        return _failure(evaluation, attempt.feedback)
    if not evaluation.speedups:
        return "right, not timed"
    ratios = (
        f"{found.mid:.3g}x ({_bounds(found)}) {name}" for name, found in evaluation.speedups.items()
    )
    share = evaluation.roofline_share
    of_roof = f", {share:.0%} of what the memory allows" if share is not None else ""
    profile = evaluation.profile
    goes = f"; its time goes to {profile.longest()}" if profile and profile.us else ""
    unsure = f"; not sure: {evaluation.unsure}" if evaluation.unsure else ""
    return f"right, speed {', '.join(ratios)}{of_roof}{goes}{unsure}"


def _failure(evaluation: Evaluation, feedback: Json) -> str:
    """From what was kept of the evidence, else from the verdict's own words."""
    worst = feedback.get("smallest_failing_trial")
    if not isinstance(worst, dict):
        return f"{evaluation.status.value}: {_text(evaluation.detail, 300)}"
    passed = feedback.get("trials", {}).get("passed", 0)
    where = ", ".join(str(worst[key]) for key in ("values", "variation") if worst.get(key))
    text = (
        f"error {worst['error']:.2g}, allowed {worst['allowed']:.2g}" if "allowed" in worst else ""
    )
    found = text or _text(str(worst.get("what", "")), 200)
    return f"{evaluation.status.value}, {passed} trials passed, then {where}: {found}"


# --- trials --------------------------------------------------------------------------------


def _tally(trials: Sequence[Trial]) -> Json:
    """Trials, not comparisons: one fails when any of its comparisons does."""
    failed = {trial.number for trial in trials if trial.passed is False}
    passed = {trial.number for trial in trials if trial.passed} - failed
    return {"passed": len(passed), "failed": len(failed)} if trials else {}


def _failing(trials: Sequence[Trial], workload: Workload) -> Json:
    failed = [trial for trial in trials if trial.passed is False]
    if not failed:
        return {}
    smallest = min(
        failed, key=lambda trial: (_rows(trial, workload), _parts(trial), -_excess(trial))
    )
    record = {
        "values": smallest.family,
        "variation": smallest.variation,
        "what": _text(smallest.detail),
        "error": _round_number(smallest.candidate_error),
        "allowed": _round_number(smallest.tolerance),
        "error_of_the_original": _round_number(smallest.reference_error),
    }
    return {key: value for key, value in record.items() if value not in (None, "")}


def _rows(trial: Trial, workload: Workload) -> float:
    """A trial has the workload's first dimension unless it says otherwise; the rest is the same
    for all."""
    verdict_record = _BATCH.search(trial.variation)
    if verdict_record:
        return int(verdict_record[1])
    shapes = [spec.shape for spec in workload.inputs or () if spec.shape]
    return max((shape[0] for shape in shapes), default=float("inf"))


def _parts(trial: Trial) -> int:
    return trial.variation.count(", ") + bool(trial.variation)


def _excess(trial: Trial) -> float:
    if trial.candidate_error is None or not trial.tolerance:
        return 0.0
    return trial.candidate_error / trial.tolerance


# --- numbers -------------------------------------------------------------------------------


def _medians(timings: Iterable[Timing]) -> Json:
    return {timing.provider: _round_number(timing.median_ms) for timing in timings}


def _interval(found: Interval) -> list[float | None]:
    return [_round_number(found.low), _round_number(found.mid), _round_number(found.high)]


def _bounds(found: Interval) -> str:
    return f"{found.low:.3g} to {found.high:.3g}"


def _numerics(evaluation: Evaluation) -> Json:
    found = evaluation.numerics
    if found is None:
        return {}
    return {
        "error": _round_number(found.candidate_error),
        "allowed": _round_number(found.tolerance),
        "error_of_the_original": _round_number(found.reference_error),
    }


def _kernel(kernel: CompiledKernel) -> Json:
    record = {
        "name": _text(kernel.name, 80),
        "arch": kernel.arch,
        "registers": kernel.registers,
        "spill_bytes": kernel.spill_bytes,
        "shared_bytes": kernel.shared_bytes,
    }
    return {key: value for key, value in record.items() if value is not None}


def _round_number(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


# --- texts ---------------------------------------------------------------------------------


def _text(text: str, most: int = MAX_TEXT) -> str:
    """On one line, cut in its middle: both a cause's first words and a traceback's last say
    something."""
    flat = " ".join(text.split())
    if len(flat) <= most:
        return flat
    return f"{flat[: most // 2 - 3]} … {flat[-(most - most // 2) :]}"


def _fit_into_limit(verdict_record: Json) -> Json:
    """Within `MAX_BYTES`: what explains least goes first."""
    for least in ("notes", "kernels", "numerics", "failed_checks", "device"):
        if _size(verdict_record) <= MAX_BYTES:
            return verdict_record
        verdict_record = {key: value for key, value in verdict_record.items() if key != least}
    shorter: dict[str, Any] = {
        key: _text(value, 200) if isinstance(value, str) else value
        for key, value in verdict_record.items()
    }
    failing = shorter.get("smallest_failing_trial")
    if isinstance(failing, dict) and _size(shorter) > MAX_BYTES:
        shorter["smallest_failing_trial"] = {
            key: _text(value, 200) if isinstance(value, str) else value
            for key, value in failing.items()
        }
    return shorter


def _size(verdict_record: Json) -> int:
    return len(json.dumps(verdict_record, ensure_ascii=False).encode("utf-8", "replace"))
