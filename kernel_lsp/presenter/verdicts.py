"""Verdicts as lines of text for a terminal: one evaluation, and one that was repeated.

A speedup is never written without its interval and its baseline. Not covered: proposals
(cards.py), colors."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.presenter import cards
from kernel_lsp.records import Check, EnvironmentFact, Evaluation, Repetition

MARKS = {True: "ok", False: "no", None: "--"}
HOLDS = {
    True: "the verdict holds",
    False: "the verdict does not hold any more",
    None: "could not judge",
}


def evaluation_lines(evaluation: Evaluation) -> Iterator[str]:
    """Status, checks, times, speedups and what there is to say, widest facts first."""
    yield f"{evaluation.status.value} on {evaluation.device_name or evaluation.device}"
    yield from (f"  {_check(check)}" for check in evaluation.checks)
    if evaluation.shapes:
        own, *others = (", ".join(shapes) for shapes in evaluation.shapes)
        also = f"; right also at {'; '.join(others)}" if others else ""
        yield f"      stands for {own}{also}"
    for timing in evaluation.timings:
        spread = f"{cards.duration(timing.p20_ms)} to {cards.duration(timing.p80_ms)}"
        yield (
            f"      {timing.provider:10} {cards.duration(timing.median_ms)} ({spread}, p20 to p80)"
        )
    for baseline, interval in evaluation.speedups.items():
        yield f"      {cards.spread(interval)} against {baseline}"
    for profile in evaluation.profiles:
        yield f"      {profile.provider:10} its time goes to {profile.longest()}"
    if evaluation.unsure:
        yield f"  the times are unsure: {evaluation.unsure}"
    if evaluation.detail:
        yield f"  {evaluation.detail}"


def repetition_lines(repetition: Repetition) -> Iterator[str]:
    """A table of then and now, and the conclusion."""
    rows = [("", "", "then", "now"), *map(_row, repetition.facts)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[3]]).rstrip()
    yield HOLDS[repetition.holds]


def _row(fact: EnvironmentFact) -> tuple[str, str, str, str]:
    return (MARKS[fact.same], fact.name, fact.before, fact.now)


def _check(check: Check) -> str:
    return f"{MARKS[check.passed]}  {check.name}  {check.detail}".rstrip()
