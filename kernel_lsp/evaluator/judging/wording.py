"""The comparisons of one trial as what the judge answers: the worst of them, and all for the
evidence."""

from __future__ import annotations

from typing import Any

from kernel_lsp.evaluator.judging import numerics

JudgeReply = dict[str, Any]


def verdict(results: list[numerics.Comparison], label: str, names: list[str]) -> JudgeReply:
    """The worst of a trial's comparisons, and all of them for the evidence."""
    worst = max(results, key=lambda x: (not x.passed, x.candidate_error - x.tolerance))
    return {
        "ok": worst.passed,
        "check": "values",
        "detail": f"{label}: {worst.detail}" if worst.detail else "",
        **_numbers(worst),
        "comparisons": [
            {"what": name, "passed": result.passed, "detail": _describe(result), **_numbers(result)}
            for name, result in zip(names, results, strict=True)
        ],
    }


def _numbers(result: numerics.Comparison) -> dict[str, float]:
    return {
        "candidate_error": _finite(result.candidate_error),
        "reference_error": _finite(result.reference_error),
        "tolerance": _finite(result.tolerance),
    }


def _describe(result: numerics.Comparison) -> str:
    """What was wrong, and the element farthest from the oracle."""
    worst = result.worst
    if worst is None:
        return result.detail
    place = f"at {worst['index']} {worst['candidate']:.9g}, the reference {worst['reference']:.9g}"
    return "; ".join(
        [*[result.detail] * bool(result.detail), f"{place}, float64 {worst['oracle']:.9g}"]
    )


def _finite(value: float) -> float:
    return min(value, 1e300)
