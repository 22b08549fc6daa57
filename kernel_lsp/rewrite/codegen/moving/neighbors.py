"""Elements that are computed side by side, and loads of neighbors as one.

The two halves of a rotated pair lie beside each other: reading every second element leaves half of
each cache line for later, and one position that is either half computes both and keeps one. Of a
kernel of ``width`` 2 or 4 a position of the iteration space stands for so many neighbors of the
result: each is computed for itself, and they are written as one. Loads whose addresses are
neighbors become one wide load that is split, also at width 1: what an upsampled element gathers its
gradient from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.codegen.core import affine
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, IndexTerm
from kernel_lsp.rewrite.codegen.core.moves import DimSizes, Position
from kernel_lsp.rewrite.codegen.moving.evaluate import MovedRead

WIDTHS = (2, 4)
"""Neighbors that one position may stand for, or one load may hold."""
SMALL = (2, 4, 8)
"""Divisors of an index that are gone where a position stands for neighbors."""
UNEVEN = 2.0
"""Loads of neighbors, for one whose address is a quotient or a remainder: no vector of it."""
FAR = 8
"""Neighbors that lie so far apart, or farther, each take a sector of memory of their own."""
WORTH = 0.75
"""Times the loads of width 1, up to which a larger width is taken."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Reads of neighbors in memory, in their order: 2 or 4 of them."""

    loads: tuple[MovedRead, ...]
    index: IndexSum
    """The address of the first."""


def address(load: MovedRead) -> IndexSum:
    """Of a tensor that is contiguous."""
    return affine.linear(load.at, affine.strides(load.tensor.shape))


def load_runs(loads: Sequence[MovedRead]) -> tuple[LoadRun, ...]:
    """What can be read as one: under the same conditions, from a place that vectors begin at."""
    found = dict[object, dict[int, tuple[MovedRead, IndexSum]]]()
    for load in loads:
        if not load.tensor.is_strided:
            index = address(load)
            key = load.tensor, load.under, index.terms
            found.setdefault(key, {})[index.constant] = load, index
    return tuple(run for places in found.values() for run in _runs(places))


def _runs(places: dict[int, tuple[MovedRead, IndexSum]]) -> Iterable[LoadRun]:
    left = dict(places)
    for width in reversed(WIDTHS):
        for start in sorted(places):
            run = range(start, start + width)
            whole = start % width == 0 and all(place in left for place in run)
            if whole and all(factor % width == 0 for _, factor in left[start][1].terms):
                yield LoadRun(tuple(left[place][0] for place in run), left[start][1])
                for place in run:
                    del left[place]


def shape_with(shape: DimSizes, width: int) -> DimSizes:
    """The iteration space whose positions stand for ``width`` neighbors each."""
    return (*shape[:-1], shape[-1] // width)


def places(shape: DimSizes, width: int) -> list[Position]:
    """Where the ``width`` neighbors of one position lie, in a tensor of that shape."""
    sizes = shape_with(shape, width)
    every = [affine.coordinate(dim, size) for dim, size in enumerate(sizes)]
    return [(*every[:-1], every[-1].times(width).plus(place)) for place in range(width)]


def candidates(shape: DimSizes, indices: Iterable[IndexSum]) -> list[int]:
    """Widths that may take quotients, remainders or steps away from the last
    dimension."""
    last = len(shape) - 1
    if last < 1 or not _has_steps(indices, last):
        return []
    return [width for width in WIDTHS if shape[-1] % width == 0]


def _has_steps(indices: Iterable[IndexSum], last: int) -> bool:
    for index in indices:
        for item, factor in index.terms:
            if item.of == last and factor in (*SMALL, *(-number for number in SMALL)):
                return True
            inner = isinstance(item.of, IndexSum) and last in affine.dims_of(item.of)
            if inner and item.by in SMALL:
                return True
    return False


def weight(sizes: DimSizes, width: int, loads: Sequence[MovedRead]) -> float:
    """Loads for each element of the result, counted as those of neighbors."""
    last = max((dim for dim, size in enumerate(sizes) if size != 1), default=0)
    runs = load_runs(loads)
    joined = {load for run in runs for load in run.loads}
    total = 0.0
    for run in runs:
        held = len(run.loads)
        total += held * (1.0 if _step(run.index, last) == held else UNEVEN)
    for load in loads:
        if load not in joined:
            total += _single(load, last)
    return total / width


def _single(load: MovedRead, last: int) -> float:
    index = affine.linear(load.at, load.tensor.steps)
    step = abs(_step(index, last))
    nested = [item.of for item, _ in index.terms if isinstance(item.of, IndexSum)]
    if any(last in affine.dims_of(inner) for inner in nested):
        return UNEVEN * min(max(step, 1), FAR)
    return min(step, FAR) if step else 0.25


def is_uneven(index: IndexSum, last: int) -> bool:
    """Neighbors along that dimension are neighbors in memory, but from odd places or backwards."""
    step = _step(index, last)
    if any(_wraps(item, last) for item, _ in index.terms):
        return True
    others = [factor for item, factor in index.terms if item.of != last]
    return step == -1 or (step == 1 and any(f % 2 for f in (*others, index.constant)))


def _wraps(item: IndexTerm, last: int) -> bool:
    """A remainder of what is below twice the divisor: a choice of two places."""
    return (
        item.kind == "mod"
        and isinstance(item.of, IndexSum)
        and item.of.range[1] < 2 * item.by
        and last in affine.dims_of(item.of)
    )


def _step(index: IndexSum, dim: int) -> int:
    return next((factor for item, factor in index.terms if item.of == dim), 0)
