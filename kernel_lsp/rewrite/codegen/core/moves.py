"""Where the elements of a moved tensor come from: one index map for each kind of move, and its
adjoint.

``move.read(at)`` says, for a position in the result, which element of the source lies there, and
under which conditions there is one (elsewhere it is the fill value). ``move.adjoint()`` is the
move that takes a gradient of the result to one of the source: each element of the source gathers
from where it went, so nothing is ever added by atomics. Not covered: moves that read one element
several times in overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from kernel_lsp.rewrite.codegen.core import affine
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, Within

Position: TypeAlias = tuple[IndexSum, ...]
DimSizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Along one dimension the source's index is ``(step * index + start) / apart``, where that is
    whole and inside."""

    start: int = 0
    step: int = 1
    apart: int = 1


@dataclass(frozen=True, slots=True)
class StridedWindow:
    """Slices, flips and padding, with steps; ``axes`` for each dimension."""

    source: DimSizes
    target: DimSizes
    axes: tuple[Axis, ...]

    def read(self, at: Position) -> tuple[Position, tuple[Within, ...]]:
        """(where element ``at`` of the target comes from, what must hold for it not to be
        filled)."""
        found, under = [], list[Within]()
        for index, axis, size, wide in zip(at, self.axes, self.source, self.target, strict=True):
            place = index.times(axis.step).plus(axis.start)
            if axis.apart != 1:
                place, rest = affine.divide(place, axis.apart)
                under.append(Within(rest, 0, 0))
            if not _is_inside(axis, size, wide):
                under.append(Within(place, 0, size - 1))
            found.append(place)
        return tuple(found), tuple(under)

    def adjoint(self) -> StridedWindow:
        """The window that puts gradients of the target back into the source."""
        axes = []
        for axis in self.axes:
            # target index = (apart * source index - start) / step
            sign = 1 if axis.step > 0 else -1
            axes.append(Axis(-axis.start * sign, axis.apart * sign, abs(axis.step)))
        return StridedWindow(self.target, self.source, tuple(axes))


def _is_inside(axis: Axis, size: int, wide: int) -> bool:
    """Every position of the result has an element, whatever is known of the coordinates."""
    ends = axis.start, axis.start + axis.step * (wide - 1)
    return axis.apart == 1 and min(ends) >= 0 and max(ends) < size


@dataclass(frozen=True, slots=True)
class Roll:
    """Every element moves by so many places; what leaves at one end comes in at the other."""

    source: DimSizes
    shifts: tuple[int, ...]
    """For each dimension, from 0 to its size."""

    @property
    def target(self) -> DimSizes:
        """Sizes of the result: those of the source."""
        return self.source

    def read(self, at: Position) -> tuple[Position, tuple[Within, ...]]:
        """(where element ``at`` comes from, ()): a remainder by the size, of no condition."""
        found = []
        for index, shift, size in zip(at, self.shifts, self.source, strict=True):
            moved = index if not shift else affine.divide(index.plus(size - shift), size)[1]
            found.append(moved)
        return tuple(found), ()

    def adjoint(self) -> Roll:
        """The roll back."""
        pairs = zip(self.shifts, self.source, strict=True)
        return Roll(self.source, tuple((size - shift) % size for shift, size in pairs))


@dataclass(frozen=True, slots=True)
class Permute:
    """Dimension ``order[i]`` of the source is dimension ``i`` of the result."""

    source: DimSizes
    order: tuple[int, ...]

    @property
    def target(self) -> DimSizes:
        """Sizes of the result."""
        return tuple(self.source[dim] for dim in self.order)

    def read(self, at: Position) -> tuple[Position, tuple[Within, ...]]:
        """(where element ``at`` comes from, ()): its indices in another order."""
        return tuple(at[self.order.index(dim)] for dim in range(len(self.order))), ()

    def adjoint(self) -> Permute:
        """The permutation back."""
        back = tuple(self.order.index(dim) for dim in range(len(self.order)))
        return Permute(self.target, back)


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in the same order, with other dimensions."""

    source: DimSizes
    target: DimSizes

    def read(self, at: Position) -> tuple[Position, tuple[Within, ...]]:
        """(where element ``at`` comes from, ()): the same place in memory, divided by other
        sizes."""
        found = list[IndexSum]()
        for old, new in runs(self.source, self.target):
            sizes = [self.source[dim] for dim in old]
            steps = affine.strides([self.target[dim] for dim in new])
            index = affine.linear([at[dim] for dim in new], steps)
            made = list[IndexSum]()
            for size in reversed(sizes[1:]):
                index, rest = affine.divide(index, size)
                made.append(rest)
            found += [index, *reversed(made)] if sizes else []
        return tuple(found), ()

    def adjoint(self) -> Reshape:
        """The reshape back."""
        return Reshape(self.target, self.source)


def runs(left: DimSizes, right: DimSizes) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions that hold the same elements on both sides, as short as they can be; both
    sides have as many elements, and some. Dimensions of one element in front join the first run:
    another batch would be there."""
    found = list[tuple[list[int], list[int]]]()
    i, j = len(left), len(right)
    while i > 0 or j > 0:
        i, j, run = _last_run(left[:i], right[:j])
        rest = (*left[:i], *right[:j])
        if (i == 0) != (j == 0) and set(rest) == {1}:
            run, i, j = ([*range(i), *run[0]], [*range(j), *run[1]]), 0, 0
        found.insert(0, run)
    return found


def _last_run(left: DimSizes, right: DimSizes) -> tuple[int, int, tuple[list[int], list[int]]]:
    """How many dimensions are left of each in front of the last run, and the run."""
    i, j = len(left), len(right)
    old = new = 1
    while (i > 0 or j > 0) and (old != new or i == len(left) or j == len(right)):
        if (old <= new and i > 0) or j == 0:
            i -= 1
            old *= left[i]
        else:
            j -= 1
            new *= right[j]
    return i, j, ([*range(i, len(left))], [*range(j, len(right))])


@dataclass(frozen=True, slots=True)
class Expand:
    """Dimensions of one element repeated, and new ones in front."""

    source: DimSizes
    target: DimSizes

    def read(self, at: Position) -> tuple[Position, tuple[Within, ...]]:
        """(where element ``at`` comes from, ()): index 0 where the source has one element."""
        behind = at[len(at) - len(self.source) :]
        wide = self.target[len(at) - len(self.source) :]
        pairs = zip(behind, self.source, wide, strict=True)
        return tuple(affine.ZERO if n == 1 != m else index for index, n, m in pairs), ()

    def adjoint(self) -> Gather:
        """The sum over what was repeated."""
        return Gather(self.target, self.source)


@dataclass(frozen=True, slots=True)
class Gather:
    """The sum over all copies that an Expand made."""

    source: DimSizes
    target: DimSizes

    @property
    def count(self) -> int:
        """How many elements of the source are added up for one of the target."""
        return math.prod(self.source) // max(1, math.prod(self.target))

    def copies(self, at: Position) -> list[Position]:
        """Every position in the source that is summed."""
        lead = len(self.source) - len(self.target)
        choices = list[Sequence[IndexSum]]()
        for dim, size in enumerate(self.source):
            own = at[dim - lead] if dim >= lead else affine.ZERO
            copied = dim < lead or self.target[dim - lead] == 1 != size
            numbers = [IndexSum((), k) for k in range(size)]
            choices.append(numbers if copied else [own])
        return [tuple(chosen) for chosen in product(*choices)]

    def adjoint(self) -> Expand:
        """The repetition of what was added up."""
        return Expand(self.target, self.source)


@dataclass(frozen=True, slots=True)
class Join:
    """Parts behind one another along a dimension."""

    dim: int
    parts: tuple[DimSizes, ...]

    @property
    def target(self) -> DimSizes:
        """Sizes of the result: the parts one behind the other along ``dim``."""
        first = self.parts[0]
        total = sum(part[self.dim] for part in self.parts)
        return (*first[: self.dim], total, *first[self.dim + 1 :])

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each part begins along ``dim``."""
        sizes = [part[self.dim] for part in self.parts]
        return tuple(sum(sizes[:index]) for index in range(len(sizes)))

    def window(self, index: int) -> StridedWindow:
        """One part out of the whole."""
        part = self.parts[index]
        start = self.starts[index]
        axes = tuple(Axis(start if dim == self.dim else 0) for dim in range(len(part)))
        return StridedWindow(self.target, part, axes)


ElementMove: TypeAlias = StridedWindow | Roll | Permute | Reshape | Expand | Gather | Join


def is_identity(move: ElementMove) -> bool:
    """Nothing moves."""
    if isinstance(move, StridedWindow):
        return move.source == move.target and all(axis == Axis() for axis in move.axes)
    if isinstance(move, Roll):
        return not any(move.shifts)
    if isinstance(move, Permute):
        return list(move.order) == sorted(move.order)
    return not isinstance(move, Join) and move.source == move.target


def is_bijection(move: ElementMove) -> bool:
    """Every element of the source is one of the result."""
    if isinstance(move, StridedWindow):
        axes = zip(move.axes, move.source, move.target, strict=True)
        return all(
            size == wide and abs(axis.step) == 1 and _is_inside(axis, size, wide)
            for axis, size, wide in axes
        )
    return isinstance(move, (Permute, Reshape, Roll))
