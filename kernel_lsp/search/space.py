"""The combinations of parameters of one chain of steps: what is near, what was seen, what promises
most.

What a combination promises is its expected improvement under a Gaussian process over the log
speeds seen in this search (Jones, Schonlau and Welch 1998). Its covariance says what is known of
such spaces: most of a combination's time is a sum over its parameters, each value with an effect
of its own; a smaller part is their interplay; choices that stand beside each other are somewhat
alike. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernel_lsp.records import Attempt, Step
from kernel_lsp.search.fitness import speed

MAX_LISTED = 20_000
"""Combinations of a whole chain. Of a larger space only what is near a parent is looked at."""
ALONE, TOGETHER, NOISE = 1.0, 0.3, 0.01
"""Variances: of what the parameters do each by itself, of their interplay, of a measurement; in
units of what was seen, so that a space with small differences is searched like one with large
ones."""
BESIDE = 0.3
"""Correlation of two neighboring choices of a parameter; its powers for those farther apart."""
FAILED = math.log(2)
"""What does not run or is wrong counts as half as fast as the slowest."""

Matrix: TypeAlias = npt.NDArray[Any]
Point = tuple[int, ...]
"""Place of the choice, for every axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchAxis:
    step: int
    """Place in the chain."""
    name: str
    choices: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """A chain of steps and what may be chosen in it."""

    steps: tuple[Step, ...]
    axes: tuple[SearchAxis, ...]

    @property
    def size(self) -> int:
        """The number of combinations."""
        return math.prod(len(axis.choices) for axis in self.axes)

    def point(self, steps: Sequence[Step]) -> Point | None:
        """The point at which these steps are; None: another chain, or a value that is no choice
        (any more)."""
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
        return tuple(
            replace(step, parameters=new) for step, new in zip(self.steps, chosen, strict=True)
        )

    def near(self, center: Point, most: int) -> Iterator[Point]:
        """The points at which up to ``most`` parameters of one step differ from the center."""
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
        """Every combination, the defaults first, the last axis fastest."""
        return itertools.product(*(range(len(axis.choices)) for axis in self.axes))


def judged_speeds(space: SearchSpace, attempts: Sequence[Attempt]) -> dict[Point, float]:
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
    """Expected improvement over the best of ``known``; the same for all where nothing can be
    learned yet.

    With K the covariance of what is known, k that with a point, and standardized values y: mean =
    k' (K + 0.01 I)^-1 y, variance = 1.3 - k' (K + 0.01 I)^-1 k, and of z = (mean - max y) /
    deviation EI = (mean - max y) Phi(z) + deviation phi(z) (Jones, Schonlau and Welch 1998,
    equation 15)."""
    if len(known) < 2 or not points:
        return [0.0] * len(points)
    values = np.array(list(known.values()))
    scale = float(values.std()) or 1.0
    seen_, asked = np.array(list(known)), np.array(points)
    weights = np.linalg.solve(
        _alike(seen_, seen_) + NOISE * np.eye(len(seen_)), _alike(seen_, asked)
    )
    mean = weights.T @ ((values - values.mean()) / scale)
    variance = ALONE + TOGETHER - np.einsum("ij,ij->j", weights, _alike(seen_, asked))
    best = (values.max() - values.mean()) / scale
    return [
        _improvement(float(m) - best, math.sqrt(max(float(v), 1e-12)))
        for m, v in zip(mean, variance, strict=True)
    ]


def _improvement(above: float, deviation: float) -> float:
    """Of a normal variable, the mean of what exceeds 0."""
    z = above / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    found = above * (1 + math.erf(z / math.sqrt(2))) / 2 + deviation * density
    # The two cancel where nothing is left to expect, and rounding may be below.
    return max(0.0, found)


def _alike(one: Matrix, other: Matrix) -> Matrix:
    """Covariance of every pair of combinations."""
    apart = np.abs(one[:, None, :] - other[None, :, :])
    near = BESIDE**apart
    both: Matrix = ALONE * near.mean(axis=2) + TOGETHER * near.prod(axis=2)
    return both
