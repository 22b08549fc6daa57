"""Which lanes of a tile a value holds nothing defined in, and along which axis they lie.

A load's masked lanes hold ``other``, or nothing defined without one. Followed through casts,
arithmetic and elementwise functions; ``tl.where`` and everything unknown ends the trail, because
it may replace the lanes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.kernels import KernelFacts, PointerAccess
from kernel_lsp.analysis.source import integer, words

# No scans: what lies behind the last element changes nothing before it.
REDUCTIONS = words("sum max min argmax argmin xor_sum")
_ELEMENTWISE = words("exp exp2 log log2 abs sqrt rsqrt sigmoid sin cos")
FLAT = -1
"""The axis of a tile with one dimension."""


@dataclass(frozen=True, slots=True)
class ReductionCall:
    call: ast.Call
    name: str
    tile: ast.expr
    axis: int | None
    """None when it is not a literal or the whole tile is reduced."""


def reductions(kernel: KernelFacts) -> Iterator[ReductionCall]:
    """All reductions of the kernel whose axis is a literal, or that have none."""
    for call, name in kernel.calls:
        if name in REDUCTIONS and call.args and not isinstance(call.args[0], ast.Starred):
            axis = call.args[1] if len(call.args) > 1 else None
            axis = next((k.value for k in call.keywords if k.arg == "axis"), axis)
            if axis is None or integer(axis) is not None:
                yield ReductionCall(call, name, call.args[0], integer(axis))


def parts(
    kernel: KernelFacts, root: ast.expr, operands: Callable[[ast.expr], Iterable[ast.expr]]
) -> Iterator[ast.expr]:
    """The formula behind a value, names resolved, each node once; ``operands`` says where it goes
    on."""
    queue = [root]
    seen: set[int] = set()
    while queue:
        node = kernel.resolve(queue.pop())
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            queue += operands(node)


def masked_loads(kernel: KernelFacts, tile: ast.expr) -> Iterator[PointerAccess]:
    """Loads whose masked lanes reach the tile unchanged or through elementwise arithmetic."""
    by_call = {id(a.call): a for a in kernel.accesses if a.is_load and a.mask is not None}

    def operands(node: ast.expr) -> list[ast.expr]:
        match node:
            case ast.BinOp(
                left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right
            ):
                # A product with a mask or a tl.where is a way to clear lanes.
                return [] if _clears(kernel, left) or _clears(kernel, right) else [left, right]
            case ast.UnaryOp(operand=operand):
                return [operand]
            case ast.Call() if (inner := cast_operand(node)) is not None:
                return [inner]
            case ast.Call(args=[argument]) if kernel.called(node) in _ELEMENTWISE:
                return [argument]
        return []

    for node in parts(kernel, tile, operands):
        if id(node) in by_call:
            yield by_call[id(node)]


def loaded_directly(kernel: KernelFacts, tile: ast.expr) -> PointerAccess | None:
    """The load that the tile is, casts aside."""
    node = kernel.resolve(tile)
    while isinstance(node, ast.Call) and (inner := cast_operand(node)) is not None:
        node = kernel.resolve(inner)
    return next((a for a in kernel.accesses if a.call is node and a.is_load), None)


def cast_operand(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.to(dtype)``."""
    is_cast = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
    return call.func.value if is_cast else None  # type: ignore[attr-defined]


def reduces_masked_lanes(kernel: KernelFacts, reduction: ReductionCall, mask: ast.expr) -> bool:
    """Whether lanes that the mask leaves out are certainly among those that are added together."""
    axes = lane_axes(kernel, mask)
    if axes is None or not axes:
        return False
    if axes == {FLAT}:
        return reduction.axis in (None, 0, -1)
    return FLAT not in axes and (reduction.axis is None or reduction.axis in axes)


def lane_axes(kernel: KernelFacts, node: ast.expr, depth: int = 12) -> set[int] | None:
    """Axes along which a mask varies; None when that is not known."""
    node = kernel.resolve(node)
    if depth == 0:
        return None
    match node:
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)):
            return _subscript_axes(kernel, value, parts, depth)
        case ast.Compare(left=left, comparators=others):
            return _union(kernel, [left, *others], depth)
        case ast.BinOp(left=left, right=right):
            return _union(kernel, [left, right], depth)
        case ast.UnaryOp(operand=operand):
            return lane_axes(kernel, operand, depth - 1)
        case ast.BoolOp(values=values):
            return _union(kernel, values, depth)
        case ast.Constant():
            return set()
        case ast.Call() if kernel.called(node) == "arange":
            return {FLAT}
        case ast.Call() if (inner := cast_operand(node)) is not None:
            return lane_axes(kernel, inner, depth - 1)
    return None if kernel.atoms(node) & {"lanes", "opaque", "memory"} else set()


def _subscript_axes(
    kernel: KernelFacts, value: ast.expr, parts: list[ast.expr], depth: int
) -> set[int] | None:
    """``lanes[:, None]``: the one axis that is kept."""
    kept = [i for i, part in enumerate(parts) if isinstance(part, ast.Slice)]
    inner = lane_axes(kernel, value, depth - 1)
    if inner is None or len(kept) != 1 or len(kept) + sum(_is_none(p) for p in parts) != len(parts):
        return None
    if inner == {FLAT}:
        return {kept[0]}
    return None if inner else set()


def _union(kernel: KernelFacts, nodes: list[ast.expr], depth: int) -> set[int] | None:
    found: set[int] = set()
    for node in nodes:
        axes = lane_axes(kernel, node, depth - 1)
        if axes is None:
            return None
        found |= axes
    return found


def _broadcast(node: ast.expr) -> ast.expr | None:
    """``x`` of ``x[:, None]``."""
    return node.value if isinstance(node, ast.Subscript) else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _clears(kernel: KernelFacts, node: ast.expr) -> bool:
    """A mask, or what tl.where made; cast or broadcast (``mask[:, None]``) or not."""
    node = kernel.resolve(node)
    while (
        inner := cast_operand(node) if isinstance(node, ast.Call) else _broadcast(node)
    ) is not None:
        node = kernel.resolve(inner)
    is_mask = isinstance(node, ast.Compare) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr)
    )
    return is_mask or kernel.called(node) == "where"
