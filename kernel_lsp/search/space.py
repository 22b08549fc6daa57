"""The combinations of parameters of one chain of steps: what is near, what was seen, what promises most.

A combination is expected to gain what similar ones have gained in this search (mean log speed, weighted by
how many parameters differ and how far apart their choices stand: kernel regression). Where little is known, a
bonus: else the first good value would be kept for ever (UCB). Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.records import Attempt, Step
from kernel_lsp.search.fitness import speed

MOST_LISTED = 20_000
"""Combinations of a whole chain. Of a larger space only what is near a parent is looked at."""
CHANGED, STEP_APART = 0.35, 0.85
"""Similarity left by a parameter that differs, and by every further place between its two choices."""
BONUS = 0.5
"""Standard deviations of what was seen, for a combination of which nothing is known."""
FAILED = math.log(2)
"""What does not run or is wrong counts as half as fast as the slowest."""

Point = tuple[int, ...]
"""Place of the choice, for every axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    step: int
    """Place in the chain."""
    name: str
    choices: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """A chain of steps and what may be chosen in it."""

    steps: tuple[Step, ...]
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return math.prod(len(axis.choices) for axis in self.axes)

    def point(self, steps: Sequence[Step]) -> Point | None:
        """None: another chain, or a value that is no choice (any more)."""
        if [(s.skill, s.site) for s in steps] != [(s.skill, s.site) for s in self.steps]:
            return None
        found = []
        for axis in self.axes:
            value = steps[axis.step].parameters.get(axis.name, axis.choices[0])
            if value not in axis.choices:
                return None
            found.append(axis.choices.index(value))
        return tuple(found)

    def at(self, point: Point) -> tuple[Step, ...]:
        """The chain with these choices; what is no axis stays as it is."""
        chosen: list[dict[str, Any]] = [dict(step.parameters) for step in self.steps]
        for axis, place in zip(self.axes, point, strict=True):
            chosen[axis.step][axis.name] = axis.choices[place]
        return tuple(replace(step, parameters=new) for step, new in zip(self.steps, chosen, strict=True))

    def near(self, center: Point, most: int) -> Iterator[Point]:
        """Where up to ``most`` parameters of one step differ."""
        for step in dict.fromkeys(axis.step for axis in self.axes):
            mine = [place for place, axis in enumerate(self.axes) if axis.step == step]
            for count in range(1, most + 1):
                for places in itertools.combinations(mine, count):
                    yield from self._changed(center, places)

    def _changed(self, center: Point, places: Sequence[int]) -> Iterator[Point]:
        others = [[c for c in range(len(self.axes[p].choices)) if c != center[p]] for p in places]
        for values in itertools.product(*others):
            changed = dict(zip(places, values, strict=True))
            yield tuple(changed.get(place, value) for place, value in enumerate(center))

    def all(self) -> Iterator[Point]:
        return itertools.product(*(range(len(axis.choices)) for axis in self.axes))


def seen(space: Space, attempts: Sequence[Attempt]) -> dict[Point, float]:
    """Log speed of every combination that was judged."""
    found: dict[Point, float] = {}
    failed = []
    for attempt in attempts:
        steps = attempt.candidate.steps if attempt.candidate else ()
        if not steps or (point := space.point(steps)) is None:
            continue
        if attempt.fitness is None:
            failed.append(point)
        else:
            found[point] = math.log(max(speed(attempt), 1e-9))
    floor = min(found.values(), default=0.0) - FAILED
    return {**dict.fromkeys(failed, floor), **found}


def promises(points: Sequence[Point], known: Mapping[Point, float]) -> list[float]:
    """Expected log speed plus the bonus for not knowing."""
    if not known:
        return [0.0] * len(points)
    mean = sum(known.values()) / len(known)
    spread = math.sqrt(sum((value - mean) ** 2 for value in known.values()) / len(known))
    return [_promise(point, known, mean, spread) for point in points]


def _promise(point: Point, known: Mapping[Point, float], mean: float, spread: float) -> float:
    weights = [(alike(point, other), value) for other, value in known.items()]
    total = sum(weight for weight, _ in weights)
    expected = sum(weight * value for weight, value in weights) / total if total else mean
    return expected + BONUS * spread / math.sqrt(1.0 + total)


def alike(one: Point, other: Point) -> float:
    """1 for the same combination."""
    weight = 1.0
    for mine, theirs in zip(one, other, strict=True):
        if mine != theirs:
            weight *= CHANGED * STEP_APART ** (abs(mine - theirs) - 1)
    return weight
