"""Where an element lies: offsets of operands as source text.

A *space* is an index variable that enumerates some dimensions in row-major order: ``offs``
over all of them, or ``row`` and ``cols`` over the kept and the reduced ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.codegen.core.ir import Dim, Operand


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpace:
    variable: str
    axes: tuple[int, ...]
    lead: str = ""
    """Index along the first dimension where ``variable`` starts; ``variable`` counts from there."""


def offset(operand: Operand, dims: Sequence[Dim], spaces: Sequence[IndexSpace]) -> str:
    """Offset of the operand's element at the current point; ``""`` for a single element."""
    terms = []
    for space, run in _runs(operand.axes, spaces):
        later = operand.axes[operand.axes.index(run[-1]) + 1 :]
        terms.append(_scale_text(_position(space, run, dims), product(later, dims)))
    return " + ".join(terms)


def sizes_in(text: str, dims: Sequence[Dim]) -> list[str]:
    """The names of dimensions that occur in the source text, in order of the dimensions."""
    words = set(
        text.replace("(", " ").replace(")", " ").replace(",", " ").replace(":", " ").split()
    )
    return [dim.name for dim in dims if dim.name in words]


def product(axes: Sequence[int], dims: Sequence[Dim]) -> str:
    """Number of elements over some dimensions, e.g. ``n_channels * n_inner``; ``""`` for none."""
    return " * ".join(dims[axis].name for axis in axes)


def _runs(
    axes: tuple[int, ...], spaces: Sequence[IndexSpace]
) -> Iterator[tuple[IndexSpace, tuple[int, ...]]]:
    """Split an operand's axes where a neighbor belongs to another space or is not adjacent
    there."""
    run: list[int] = []
    for axis in axes:
        if run and not any(_adjacent(space, run[-1], axis) for space in spaces):
            yield _owner(run[0], spaces), tuple(run)
            run = []
        run.append(axis)
    if run:
        yield _owner(run[0], spaces), tuple(run)


def _adjacent(space: IndexSpace, left: int, right: int) -> bool:
    if left not in space.axes or right not in space.axes:
        return False
    return space.axes.index(right) == space.axes.index(left) + 1


def _owner(axis: int, spaces: Sequence[IndexSpace]) -> IndexSpace:
    return next(space for space in spaces if axis in space.axes)


def _position(space: IndexSpace, run: tuple[int, ...], dims: Sequence[Dim]) -> str:
    """Index over the run's dimensions, taken out of the space's index."""
    text = space.variable
    if inner := product(space.axes[space.axes.index(run[-1]) + 1 :], dims):
        text = f"{text} // {_parenthesize(inner)}"
    if run[0] != space.axes[0]:
        return f"{_parenthesize(text)} % {_parenthesize(product(run, dims))}"
    if not space.lead:  # the first dimension never wraps around
        return text
    return f"{_scale_text(space.lead, product(run[1:], dims))} + {text}"


def _scale_text(text: str, stride: str) -> str:
    return f"{_parenthesize(text)} * {stride}" if stride else text


def _parenthesize(text: str) -> str:
    return f"({text})" if " " in text else text
