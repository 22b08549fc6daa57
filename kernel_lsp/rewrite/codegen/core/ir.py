"""What a kernel computes, without torch: dimensions, operands, values and outputs.

A region iterates over named dimensions. A run of them may be reduced; then every value is
either *full* (one element for each point) or *rowwise* (one element for each row, that is,
for each point of the dimensions that are not reduced). Values form a directed acyclic graph
compared by identity. Not covered: float64 arithmetic, integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from kernel_lsp.rewrite.codegen.core.moves import ElementMove, Gather, is_identity

Scalar: TypeAlias = float | int | bool
REDUCTIONS = ("sum", "max", "min", "prod", "moments", "softmax_stats", "argmax", "argmin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dim:
    """One dimension of the iteration space."""

    name: str
    size: int
    """Size in the workload; used to choose block sizes, never written into the source."""
    source: str
    """Python expression of the size in the launcher, e.g. ``x.shape[-1]``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """A tensor that the kernel reads, contiguous in memory over the dimensions where it varies."""

    name: str
    dtype: str
    axes: tuple[int, ...]
    """Ascending indices of the dimensions where it varies; empty for one element."""
    inner: int | None = None
    """Of one that varies along all dimensions and is not contiguous: where its elements lie
    closest. flat.py and tiled.py read it by its strides, other kernels read a copy."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Value:
    """One intermediate result: a load, a pointwise operation or a reduction over the row."""

    op: str
    args: tuple[Value | Scalar | None, ...] = ()
    dtype: str = "float32"
    """torch's name; arithmetic on float16 and bfloat16 runs in float32 all the same."""
    operand: Operand | None = None
    rowwise: bool = False
    hint: str | None = None
    """Name that a reader would expect for it."""
    inline: bool = False
    """Its only reader is the rest of the same statement: written there, where that stays
    readable."""
    move: ElementMove | None = None
    """Of ``moved``, ``joined``, ``gathered`` and ``totaled``: which elements it reads. Only
    codegen/moving makes these."""

    @property
    def values(self) -> tuple[Value, ...]:
        """The arguments that are values rather than numbers."""
        return tuple(arg for arg in self.args if isinstance(arg, Value))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Output:
    """A tensor that the kernel writes: contiguous over all dimensions, or over the rows."""

    name: str
    value: Value
    dtype: str
    shape: str
    """Python expression of its shape in the launcher, e.g. ``x.shape``."""
    rowwise: bool = False
    columns: bool = False
    """Reduced over all rows, to one element for each point of a row: only persistent.py and
    matmul/reduced_rows.py make these."""
    segments: bool = False
    """Reduced over the last dimension alone, in blocks: only segments.py makes these."""
    inner: int | None = None
    """Of a view that the launcher is given to write to, by its strides: as an operand's."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Region:
    """One kernel's worth of work."""

    name: str
    """Name of the launcher; the kernel is called ``_<name>_kernel``."""
    dims: tuple[Dim, ...]
    outputs: tuple[Output, ...]
    reduced: tuple[int, ...] = ()
    """The consecutive dimensions that are reduced; empty for a pointwise region."""
    order: tuple[Operand, ...] = ()
    """Operands in the order of the launcher's signature; empty for the order of use."""

    @property
    def values(self) -> tuple[Value, ...]:
        """All values that the outputs need, each after those that it is made of."""
        return tuple(topological(output.value for output in self.outputs))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What is loaded, in the order in which the launcher takes it."""
        if self.order:
            return self.order
        loads = (value.operand for value in self.values)
        return tuple(dict.fromkeys(operand for operand in loads if operand is not None))

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes that are not reduced, in order."""
        return tuple(axis for axis in range(len(self.dims)) if axis not in self.reduced)


def topological(roots: Iterable[Value]) -> Iterator[Value]:
    """Every value below the roots, once, arguments first."""
    seen: set[Value] = set()

    def visit(value: Value) -> Iterator[Value]:
        if value in seen:
            return
        seen.add(value)
        for arg in value.values:
            yield from visit(arg)
        yield value

    for root in roots:
        yield from visit(root)


def load(operand: Operand, *, rowwise: bool = False) -> Value:
    """The value of an operand; ``rowwise``: it is one number per row."""
    return Value(
        op="load", dtype=operand.dtype, operand=operand, rowwise=rowwise, hint=operand.name
    )


def apply(
    op: str, *args: Value | Scalar | None, dtype: str = "float32", hint: str | None = None
) -> Value:
    """A pointwise operation; rowwise when all of its arguments are."""
    values = [arg for arg in args if isinstance(arg, Value)]
    return Value(op=op, args=args, dtype=dtype, rowwise=all(v.rowwise for v in values), hint=hint)


def moved(value: Value, move: ElementMove, fill: Scalar = 0.0) -> Value:
    """The elements at other places, with ``fill`` where there is none."""
    if is_identity(move):
        return value
    if isinstance(move, Gather):
        return Value(op="gathered", args=(value,), dtype=value.dtype, move=move)
    return Value(op="moved", args=(value, fill), dtype=value.dtype, hint=value.hint, move=move)


def reduce(kind: str, value: Value, hint: str | None = None) -> Value:
    """A reduction over the row. ``moments``, ``softmax_stats``, ``argmax`` and ``argmin`` are pairs,
    see :func:`part`."""
    assert kind in REDUCTIONS, kind
    return Value(op=kind, args=(value,), rowwise=True, hint=hint)


def careful(stats: Value) -> Value:
    """The same ``softmax_stats`` of exponentials that are not all off one way."""
    return replace(stats, args=(*stats.args, True))


def is_careful(stats: Value) -> bool:
    """Whether softmax's statistics are those of `careful`."""
    return len(stats.args) > 1


def part(pair: Value, index: int, hint: str) -> Value:
    """mean (0) or sum of squared deviations (1); row maximum (0) or sum of exponentials (1); extreme
    value (0) or its place in the row (1)."""
    return Value(op="part", args=(pair, index), rowwise=True, hint=hint)


def count() -> Value:
    """Number of elements in a row."""
    return Value(op="count", rowwise=True)
