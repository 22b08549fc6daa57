"""Which combinations of a site's parameters are worth a look, in which order. Standard library
only.

A space that fits into the limit is taken whole. Of a larger one a skill's own estimate chooses,
where it has one; else the neighbors of what is best so far: one parameter changed, then two. Asked
again around a new best, that is a coordinate descent. Not covered: measuring
(evaluator/tuning.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernel_lsp.records import SEMANTIC_PARAMETERS

Choice = dict[str, Any]
Estimate = Callable[[Choice], float]
"""Seconds, or anything that grows with them; infinite for a combination that cannot work."""

MAX_COMBINATIONS = 100_000
"""A product larger than this is not listed; its neighbors are."""


def free_parameters(parameters: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The parameters with more than one choice that differ in speed or accuracy only."""
    return {k: v for k, v in parameters.items() if len(v) > 1 and k not in SEMANTIC_PARAMETERS}


def combinations(
    parameters: Mapping[str, Sequence[Any]],
    center: Mapping[str, Any],
    limit: int,
    estimate: Estimate | None = None,
) -> list[Choice]:
    """At most ``limit`` combinations, ``center`` first; each names every parameter."""
    space = free_parameters(parameters)
    start = {**{name: choices[0] for name, choices in parameters.items()}, **center}
    size = math.prod(len(choices) for choices in space.values())
    if estimate is not None and size <= MAX_COMBINATIONS:
        costs = [(estimate(choice), i, choice) for i, choice in enumerate(_product(space, start))]
        found: Iterable[Choice] = (
            choice for cost, _, choice in sorted(costs, key=_cost) if cost < math.inf
        )
    elif size <= limit:
        found = _product(space, start)
    else:
        found = (choice for distance in (1, 2) for choice in _neighbors(space, start, distance))
    others = (choice for choice in found if choice != start)
    return [start, *itertools.islice(others, max(0, limit - 1))]


def _cost(entry: tuple[float, int, Choice]) -> tuple[float, int]:
    return entry[0], entry[1]


def _product(space: Mapping[str, Sequence[Any]], start: Choice) -> Iterable[Choice]:
    for values in itertools.product(*space.values()):
        yield {**start, **dict(zip(space, values, strict=True))}


def _neighbors(
    space: Mapping[str, Sequence[Any]], start: Choice, distance: int
) -> Iterable[Choice]:
    """``start`` with exactly ``distance`` parameters changed."""
    for names in itertools.combinations(space, distance):
        others = [[value for value in space[name] if value != start[name]] for name in names]
        for values in itertools.product(*others):
            yield {**start, **dict(zip(names, values, strict=True))}
