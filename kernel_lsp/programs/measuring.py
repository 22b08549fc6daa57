"""A program's own step, timed in several ways side by side, and whether edits leave what it computes.

Every run is a fresh process. Rounds alternate: each way once per round, in an order that reverses, so that a
machine that drifts hits all of them. A ratio is that of two ways' steady medians in one round; its
interval is Student's over rounds. What an edited program computes may differ from the original by no
more than `ALLOWED` times what the original differs from itself when every parameter moves by one
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from kernel_lsp.programs.stepping import Run, Way
from kernel_lsp.records import Interval

AS_IS = Way(name="as it is")
EDITED = Way(name="our edits", edited=True)
COMPILED = (
    Way(name="torch.compile", mode="default"),
    Way(name="torch.compile, max-autotune-no-cudagraphs", mode="max-autotune-no-cudagraphs"),
    Way(name="torch.compile, reduce-overhead", mode="reduce-overhead"),
    Way(name="torch.compile of the repeated block", mode="default", regional=True),
)
BOTH = Way(name="our edits and torch.compile", mode="default", edited=True)
ROUNDS = 3
HOPELESS = 1.15
"""Times the best step of the first round: such a way is not run again."""
ALLOWED = 4.0
LEAST = 2.0**-18
"""Relative difference that is always allowed: a reassociated float32 sum."""
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36}
"""Student's t for 95 %, by degrees of freedom."""


@dataclass
class Measured:
    """Runs of each way, one per round; a failed one ends a way."""

    runs: dict[Way, list[Run]] = field(default_factory=dict)

    def step_ms(self, way: Way) -> float | None:
        """Mean over rounds of the steady median."""
        found = [run.step_ms for run in self.runs.get(way, ()) if run.step_ms is not None]
        return fmean(found) if found else None

    def failed(self, way: Way) -> str | None:
        return next((run.failed for run in self.runs.get(way, ()) if run.failed), None)

    def ratio(self, before: Way, after: Way) -> Interval | None:
        """How many times as fast ``after`` is; None where no round has both."""
        pairs = zip(self.runs.get(before, ()), self.runs.get(after, ()), strict=False)
        logs = [math.log(a.step_ms / b.step_ms) for a, b in pairs if a.step_ms and b.step_ms]
        if not logs:
            return None
        middle = fmean(logs)
        half = T_95[min(len(logs) - 1, 7)] * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        return Interval(
            low=math.exp(middle - half), mid=math.exp(middle), high=_exp(middle + half), confidence=0.95
        )

    def best(self, ways: Sequence[Way]) -> Way | None:
        known = [way for way in ways if self.step_ms(way) is not None and not self.failed(way)]
        return min(known, key=lambda way: self.step_ms(way) or math.inf, default=None)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def measure(
    ways: Sequence[Way], start: Callable[[Way], Run], report: Callable[[str], None], rounds: int = ROUNDS
) -> Measured:
    """``start``: runs the program once in one way."""
    measured = Measured()
    running = list(ways)
    for number in range(rounds):
        for way in running if number % 2 == 0 else reversed(running):
            report(f"round {number + 1} of {rounds}: {way.name}")
            measured.runs.setdefault(way, []).append(start(way))
        if number == 0:
            running = _worth_more(measured, running)
    return measured


def _worth_more(measured: Measured, ways: Sequence[Way]) -> list[Way]:
    """Without what failed or is far behind; the program as it is, and our edits, always stay."""
    best = measured.best(ways)
    bar = HOPELESS * ((measured.step_ms(best) if best else None) or math.inf)
    kept = (AS_IS, EDITED)
    return [
        way
        for way in ways
        if not measured.failed(way) and (way in kept or (measured.step_ms(way) or math.inf) <= bar)
    ]


# --- what it computes -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two runs' gradients (or results) are apart, per step, beside what is allowed."""

    right: bool
    steps: tuple[tuple[float, float], ...]
    """(difference, allowed) relative to the norm, of each step that both have."""
    detail: str = ""


def agreement(original: Run, again: Run, moved: Run, edited: Run) -> Agreement:
    """``again``: the original once more; ``moved``: its parameters moved by one rounding."""
    compared = zip(original.digests, again.digests, moved.digests, edited.digests, strict=False)
    steps = []
    for first, same, other, ours in compared:
        found = [apart(first, one) for one in (same, other, ours)]
        if any(one is None for one in found):
            return Agreement(right=False, steps=(), detail="it computes tensors of other numbers")
        noise = max(found[0] or 0.0, found[1] or 0.0)
        steps.append((found[2] or 0.0, ALLOWED * noise + LEAST))
    if not steps:
        return Agreement(right=False, steps=(), detail="nothing could be compared")
    worst = max(steps, key=lambda step: step[0] / step[1])
    detail = f"off by {worst[0]:.2e} of the norm, {worst[1]:.2e} allowed"
    return Agreement(right=worst[0] <= worst[1], steps=tuple(steps), detail=detail)


def apart(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float | None:
    """Estimated norm of the difference of all tensors over their norm; None when they do not pair up.

    The product of a vector with random signs is its norm on average over signs (squared), so differences of
    products estimate the norm of a difference of which neither run knows the other half.
    """
    if len(one) != len(other):
        return None
    square = whole = 0.0
    for mine, theirs in zip(one, other, strict=True):
        differences = [(a - b) ** 2 for a, b in zip(mine[1:], theirs[1:], strict=True)]
        square, whole = square + fmean(differences), whole + mine[0] ** 2
    if not (math.isfinite(square) and math.isfinite(whole)):
        return math.inf if _finite(one) or _finite(other) else 0.0
    return math.sqrt(square / whole) if whole else (0.0 if square == 0 else math.inf)


def _finite(rows: Sequence[Sequence[Any]]) -> bool:
    return all(math.isfinite(value) for row in rows for value in row)
