"""Whether edits leave what a program computes, from runs that keep digests of it.

What an edited program computes may differ from the original by no more than `ALLOWED` times what
the original differs from itself when every parameter moves by one rounding. Of a program that draws
random numbers, with edits that may draw otherwise, numbers are compared without dropout, and
distributions with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from kernel_lsp.programs.measuring import AS_IS
from kernel_lsp.programs.runs import AskedRun, ProgramRuns
from kernel_lsp.programs.stepping import ProgramWay, StepRun
from kernel_lsp.programs.timetable import words_of_seconds

CHECKED_STEPS = 4
EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, None: 2.0**-23}
"""By autocast's dtype: how far one rounding moves a value."""
ALLOWED = 4.0
MIN_RELATIVE_DIFFERENCE = 2.0**-18
"""Relative difference that is always allowed: a reassociated float32 sum."""
CHANCE, SCATTER = 11.3, 16.0
"""99 % quantiles of F(1, 8) and F(4, 4), which five draws each of two programs give: of the squared
distance of their means, and of the ratio of their variances."""
DRAWS = 5
TOO_LONG = "took longer than what was left of the time"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two runs' gradients (or results) are apart, per step, beside what is allowed."""

    right: bool
    steps: tuple[tuple[float, float], ...]
    """(difference, allowed) relative to the norm, of each step that both have."""
    detail: str = ""
    is_known: bool = True
    """False: there was no time to compare them."""


def agreement(original: StepRun, again: StepRun, moved: StepRun, *, edited: StepRun) -> Agreement:
    """Whether the edited program computes what the original does, within what the original's own
    runs differ by. ``again``: the original once more; ``moved``: its parameters moved by one
    rounding."""
    compared = zip(original.digests, again.digests, moved.digests, edited.digests, strict=False)
    steps = []
    for first, same, other, ours in compared:
        found = [apart(first, one) for one in (same, other, ours)]
        if any(one is None for one in found):
            return Agreement(right=False, steps=(), detail="it computes tensors of other numbers")
        noise = max(found[0] or 0.0, found[1] or 0.0)
        steps.append((found[2] or 0.0, ALLOWED * noise + MIN_RELATIVE_DIFFERENCE))
    if not steps:
        return Agreement(right=False, steps=(), detail="nothing could be compared")
    worst = max(steps, key=lambda step: step[0] / step[1])
    detail = f"off by {worst[0]:.2e} of the norm, {worst[1]:.2e} allowed"
    return Agreement(right=worst[0] <= worst[1], steps=tuple(steps), detail=detail)


def alike_by_distribution(originals: Sequence[StepRun], edited: Sequence[StepRun]) -> Agreement:
    """Whether two programs that draw random numbers compute the same distribution, as far as the
    first steps of some runs with other draws tell.

    Compared are the means and the scatter of the gradients' products with random signs. Under the
    same distribution the squared distance of two means is an F variate of at least one degree of
    freedom; its 99 % quantile is `CHANCE`. An error of the mean below `_DrawMoments.noticeable`
    would not be noticed, which the detail says; where not even one of the size of the gradients
    would be, it is no agreement."""
    one, other = (_draws(runs) for runs in (originals, edited))
    if min(len(one), len(other)) < 2 or len({len(row) for row in (*one, *other)}) != 1:
        return Agreement(right=False, steps=(), detail="its draws could not be compared")
    if not _finite((*one, *other)):
        return Agreement(right=False, steps=(), detail="it computes what is not finite")
    moments = _moments(one, other)
    if not moments.norm or not moments.chance:
        right = moments.distance <= MIN_RELATIVE_DIFFERENCE * moments.norm
        return Agreement(right=right, steps=(), detail="its draws change nothing")
    off, noticeable = moments.distance / moments.norm, moments.noticeable
    words = f"by distribution over {moments.count} draws: means off by {off:.2f} of the norm"
    if noticeable > 1:
        right, words = False, f"{words}, which scatter too much to tell"
    elif not 1 / SCATTER <= moments.scatter_ratio <= SCATTER:
        right, words = False, f"{words}, and they scatter {moments.scatter_ratio:.2g} times"
    else:
        right = off <= noticeable
        words = f"{words}, an error above {noticeable:.2f} would have been seen"
    return Agreement(right=right, steps=((off, noticeable),), detail=words)


@dataclass(frozen=True, kw_only=True)
class _DrawMoments:
    """Means and variances of two programs' draws, summed over the products."""

    count: int
    """Draws of the program that has fewer."""
    norm: float
    """Of the original's means."""
    distance: float
    """Of the two programs' means."""
    variance: float
    edited_variance: float

    @property
    def chance(self) -> float:
        """The square of the distance that draws of one distribution have on average."""
        return (self.variance + self.edited_variance) / self.count

    @property
    def noticeable(self) -> float:
        """The least distance of two distributions that is seen, relative to the norm."""
        return math.sqrt(CHANCE * self.chance) / self.norm

    @property
    def scatter_ratio(self) -> float:
        """Variance of the edited program's numbers over that of the original's; infinite where the
        latter is 0."""
        return self.edited_variance / self.variance if self.variance else math.inf


def _moments(original: list[list[float]], edited: list[list[float]]) -> _DrawMoments:
    before, after = (list(zip(*rows, strict=True)) for rows in (original, edited))
    means, others = (list(map(fmean, columns)) for columns in (before, after))
    return _DrawMoments(
        count=min(len(original), len(edited)),
        norm=math.hypot(*means),
        distance=math.dist(means, others),
        variance=sum(stdev(column) ** 2 for column in before),
        edited_variance=sum(stdev(column) ** 2 for column in after),
    )


def _draws(runs: Sequence[StepRun]) -> list[list[float]]:
    """Of each run that has any the products of its first step, in one row."""
    found = [run.digests[0] for run in runs if run.digests]
    return [[value for tensor in digest for value in tensor[1:]] for digest in found]


def apart(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float | None:
    """Estimated norm of the difference of all tensors over their norm; None when they do not pair
    up.

    The product of a vector with random signs is its norm on average over signs (squared), so
    differences of products estimate the norm of a difference of which neither run knows the other
    half."""
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


class ComparedWays:
    """Which ways compute what the program does, found out when somebody asks."""

    def __init__(
        self, runs: ProgramRuns, autocast: str | None, report: Callable[[str], None]
    ) -> None:
        """``autocast``: the dtype in which the program computes under it, if it does."""
        self.agreements: dict[str, Agreement] = {}
        """By the way's name."""
        self.taken: dict[str, tuple[int, int]] = {}
        """Edited class -> calls, and those of them that went the original way."""
        self.draws = False
        """Whether the program draws random numbers in its step."""
        self._runs, self._say = runs, report
        self._eps = EPS.get(autocast, EPS[None])

    def is_right(self, way: ProgramWay) -> bool:
        """Whether it computes what the program does; compared once."""
        return self.agreements[way.name].right if way.name in self.agreements else self.compare(way)

    def compare(self, way: ProgramWay) -> bool:
        """Whether it computes what the program does, whatever was found for one of its name."""
        found = self.agreements[way.name] = self._compare(way)
        return found.right

    @property
    def wrong(self) -> set[str]:
        """Names of ways that compute something else, or of which that is unknown."""
        return {name for name, found in self.agreements.items() if not found.right}

    def _compare(self, way: ProgramWay) -> Agreement:
        """Step by step."""
        checking: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS}
        edited = [list(one.name) for one in self._runs.variants[way.variant or ""].composed]
        asked: list[AskedRun] = [
            (AS_IS, 0, checking),
            (AS_IS, 1, checking),
            (AS_IS, 0, {**checking, "nudge": self._eps}),
            (way, 0, {**checking, "edited": edited}),
        ]
        if (needed := self._runs.seconds_of(asked)) > self._runs.timetable.left_s:
            return _not_compared(f"would take {words_of_seconds(needed)}")
        self._say(f"checking what the program computes with {way.name}")
        *originals, run = self._runs.start_together(asked)
        self.taken |= run.taken
        failed = next((one.failed for one in (*originals, run) if one.failed), None)
        if self._runs.is_late([*originals, run]):
            return _not_compared(TOO_LONG)
        if failed:
            return Agreement(right=False, steps=(), detail=failed)
        found = agreement(*originals, edited=run)
        return found if found.right or not self.draws else self.compare_draws(way, edited)

    def compare_draws(self, way: ProgramWay, edited: list[list[str]]) -> Agreement:
        """The agreement of a program that draws, with edits that may draw otherwise: number by
        number without dropout, and by distribution with it."""
        undrawn: dict[str, Any] = {"check": True, "steps": CHECKED_STEPS, "undrawn": True}
        without_draws: list[AskedRun] = [
            (AS_IS, 0, undrawn),
            (AS_IS, 0, {**undrawn, "nudge": self._eps}),
            (way, 0, {**undrawn, "edited": edited}),
        ]
        numbers = range(1, DRAWS + 1)
        redrawn: dict[str, Any] = {"check": True, "steps": 1}
        draws: list[AskedRun] = [(AS_IS, 0, {**redrawn, "redraw": n}) for n in numbers]
        draws += [(way, 0, {**redrawn, "redraw": n, "edited": edited}) for n in numbers]
        needed = self._runs.seconds_of([*without_draws, *draws])
        if needed > self._runs.timetable.left_s:
            return _not_compared(
                f"would take {words_of_seconds(needed)}: it may draw other random numbers"
            )
        self._say(
            f"{way.name} may draw other random numbers: comparing without, and by distribution"
        )
        first, moved, ours = self._runs.start_together(without_draws)
        if self._runs.is_late([first, moved, ours]):
            return _not_compared(TOO_LONG)
        if any(not_fast == calls for calls, not_fast in ours.taken.values()):
            return Agreement(right=False, steps=(), detail="without dropout it takes another path")
        without = agreement(first, first, moved, edited=ours)
        if not without.right:
            return replace(without, detail=f"without dropout {without.detail}")
        runs = self._runs.start_together(draws)
        if self._runs.is_late(runs):
            return _not_compared(TOO_LONG)
        found = alike_by_distribution(runs[: len(numbers)], runs[len(numbers) :])
        return replace(found, detail=f"{found.detail}; without dropout {without.detail}")


def _not_compared(why: str) -> Agreement:
    """``why``: what the comparison took, or would take."""
    detail = (
        f"left out, comparing what the program computes with it {why}; the same command goes on "
        "with it, --within gives it more at once"
    )
    return Agreement(right=False, steps=(), detail=detail, is_known=False)
