"""aten operations that move elements, as moves of the expression IR.

`moved_value(node, get)` builds the value of one of them from those of its tensors, `is_move` and
`is_view` say which nodes they are. A variant that is not covered raises Unsupported."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Value, apply, moved
from kernel_lsp.rewrite.codegen.core.moves import (
    Axis,
    DimSizes,
    Expand,
    Join,
    Permute,
    Reshape,
    Roll,
    StridedWindow,
)
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.graph import argument

GetValue: TypeAlias = Callable[[fx.Node], Value]
MoveBuilder: TypeAlias = Callable[[fx.Node, GetValue], Value]

SPLITS = ("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_split",
          "unsafe_chunk")  # fmt: skip
RESHAPES = ("view", "reshape", "flatten", "unflatten", "_unsafe_view", "unsqueeze", "squeeze",
            "view_as", "reshape_as", "ravel")  # fmt: skip
TURNS = ("permute", "transpose", "t", "mT", "numpy_T", "movedim", "moveaxis", "swapaxes",
         "swapdims")  # fmt: skip
VIEWS = ("slice", "select", "narrow", "unsqueeze", "squeeze", "expand", "expand_as", *TURNS)
"""What never copies; reshapes may."""
JOINS = ("cat", "concat", "concatenate", "stack")


def is_part(node: Any) -> bool:
    """One part of a split tensor."""
    called = isinstance(node, fx.Node) and node.target is operator.getitem
    return called and op_name(node.args[0]) in SPLITS


def name_of(node: Any) -> str:
    """The operation's name; ``part`` for one part of a split tensor."""
    return "part" if is_part(node) else op_name(node)


def sources(node: fx.Node) -> list[fx.Node]:
    """The tensors that the elements come from."""
    if is_part(node):
        return [node.args[0].args[0]]
    if op_name(node) in JOINS:
        return [item for item in node.args[0] if isinstance(item, fx.Node)]
    return [node.args[0]]


def is_move(node: Any) -> bool:
    """Whether the node moves elements in a way that is known."""
    value = getattr(node, "meta", {}).get("val")
    if name_of(node) not in BUILDERS or not isinstance(value, torch.Tensor) or not value.numel():
        return False
    kinds = FLOATS if name_of(node) == "diff" else (*FLOATS, torch.bool)
    found = [item.meta["val"] for item in sources(node)]
    alike = all(isinstance(item, torch.Tensor) and item.dtype == value.dtype for item in found)
    return alike and value.dtype in kinds


def is_view(node: Any) -> bool:
    """A move that copies nothing in eager."""
    name = name_of(node)
    if name == "part" or name in VIEWS:
        return True
    if name not in RESHAPES and name not in ("contiguous", "flatten"):
        return False
    value, base = node.meta["val"], node.args[0].meta["val"]
    if name == "contiguous":
        return bool(base.stride() == value.stride())
    try:
        empty = torch.empty_strided(base.shape, base.stride(), device="meta")
        empty.view(value.shape)
    except RuntimeError:
        return False
    return True


def moved_value(node: fx.Node, get: GetValue) -> Value:
    """The value of an operation that moves elements (`is_move`), from those that ``get`` gives for
    its tensors. Raises Unsupported."""
    return BUILDERS[name_of(node)](node, get)


def expanded(value: Value, source: DimSizes, target: DimSizes) -> Value:
    """The value of that shape, broadcast to another."""
    return moved(value, Expand(source, target))


# --- windows -----------------------------------------------------------------------------


def _window(
    value: Value, source: DimSizes, target: DimSizes, axes: dict[int, Axis], fill: float = 0.0
) -> Value:
    every = tuple(axes.get(dim, Axis()) for dim in range(len(source)))
    return moved(value, StridedWindow(source, target, every), fill)


def _base(node: fx.Node, get: GetValue) -> tuple[Value, DimSizes, DimSizes]:
    """Value and shape of the tensor that is moved, and the shape of the result."""
    (base,) = sources(node)
    return get(base), shape_of(base), shape_of(node)


def _slice(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    dim = int(argument(node, "dim", 0)) % len(source)
    start, size = argument(node, "start") or 0, source[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    return _window(value, source, target, {dim: Axis(start, int(argument(node, "step", 1)))})


def _narrow(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    dim, start = int(argument(node, "dim")) % len(source), argument(node, "start")
    if not isinstance(start, int):
        raise Unsupported("a part that begins where a tensor says")
    start = start + source[dim] if start < 0 else start
    return _window(value, source, target, {dim: Axis(start)})


def taken(value: Value, source: DimSizes, target: DimSizes, dim: int, start: int) -> Value:
    """One index of a dimension, which goes."""
    one = (*source[:dim], 1, *source[dim + 1 :])
    return moved(_window(value, source, one, {dim: Axis(start)}), Reshape(one, target))


def _select(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    dim, index = int(argument(node, "dim")) % len(source), argument(node, "index")
    if not isinstance(index, int):
        raise Unsupported("an element that a tensor chooses")
    return taken(value, source, target, dim, index % source[dim])


def _part(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    split, index = node.args
    parts = [tuple(part.shape) for part in split.meta["val"]]
    index = index % len(parts)
    if op_name(split) == "unbind":
        return taken(value, source, target, int(argument(split, "dim", 0)) % len(source), index)
    dim = int(argument(split, "dim", 0)) % len(source)
    start = sum(int(part[dim]) for part in parts[:index])
    return _window(value, source, target, {dim: Axis(start)})


def _flip(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    dims = {int(dim) % len(source) for dim in argument(node, "dims")}
    return _window(value, source, target, {dim: Axis(source[dim] - 1, -1) for dim in dims})


def _pad(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    if argument(node, "mode", "constant") != "constant":
        raise Unsupported("padding with elements of the tensor")
    fill, widths = argument(node, "value"), list(argument(node, "pad"))
    lefts = {len(source) - 1 - k: int(widths[2 * k]) for k in range(len(widths) // 2)}
    axes = {dim: Axis(-left) for dim, left in lefts.items()}
    return _window(value, source, target, axes, float(fill or 0.0))


# --- the same elements elsewhere ---------------------------------------------------------


def _reshape(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    return moved(value, Reshape(source, target))


def _expand(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    return expanded(value, source, target)


def _turn(node: fx.Node, get: GetValue) -> Value:
    """The order is read off a tensor whose sizes all differ."""
    value, source, _ = _base(node, get)
    probe = torch.empty(tuple(range(2, 2 + len(source))), device="meta")
    turned = node.target(probe, *node.args[1:], **node.kwargs)
    return moved(value, Permute(source, tuple(size - 2 for size in turned.shape)))


def _roll(node: fx.Node, get: GetValue) -> Value:
    value, source, _ = _base(node, get)
    given, dims = _listed(argument(node, "shifts")), _listed(argument(node, "dims") or ())
    if not dims:
        flat = (torch.Size(source).numel(),)
        rolled = Roll(flat, (given[0] % flat[0],))
        return moved(moved(moved(value, Reshape(source, flat)), rolled), Reshape(flat, source))
    shifts = [0] * len(source)
    for shift, dim in zip(given, dims, strict=True):
        shifts[dim % len(source)] += shift
    every = tuple(shift % size for shift, size in zip(shifts, source, strict=True))
    return moved(value, Roll(source, every))


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


# --- several times, and several ----------------------------------------------------------


def _repeat(node: fx.Node, get: GetValue) -> Value:
    """repeat and tile: all of a dimension so many times."""
    value, source, target = _base(node, get)
    aligned = (1,) * (len(target) - len(source)) + source
    apart = tuple(n for size in aligned for n in (1, size))
    pairs = zip(aligned, target, strict=True)
    wide = tuple(n for size, full in pairs for n in (full // size, size))
    value = moved(moved(value, Reshape(source, apart)), Expand(apart, wide))
    return moved(value, Reshape(wide, target))


def _repeat_interleave(node: fx.Node, get: GetValue) -> Value:
    """Each element of a dimension so many times."""
    value, source, target = _base(node, get)
    dim, times = argument(node, "dim"), argument(node, "repeats")
    if not isinstance(times, int):
        raise Unsupported("a tensor says how often elements are repeated")
    if dim is None:
        flat = (torch.Size(source).numel(),)
        value, source, dim = moved(value, Reshape(source, flat)), flat, 0
    dim = int(dim) % len(source)
    apart = (*source[: dim + 1], 1, *source[dim + 1 :])
    wide = (*source[: dim + 1], times, *source[dim + 1 :])
    value = moved(moved(value, Reshape(source, apart)), Expand(apart, wide))
    return moved(value, Reshape(wide, target))


def _join(node: fx.Node, get: GetValue) -> Value:
    target, parts = shape_of(node), sources(node)
    if len(parts) != len(node.args[0]):
        raise Unsupported("parts that are no tensors")
    dim = int(argument(node, "dim", 0)) % len(target)
    values, shapes = list[Value](), list[DimSizes]()
    for part in parts:
        shape = shape_of(part)
        if 0 in shape:
            raise Unsupported("a part without elements")
        value = get(part)
        if op_name(node) == "stack":
            wide = (*shape[:dim], 1, *shape[dim:])
            value, shape = moved(value, Reshape(shape, wide)), wide
        values.append(value)
        shapes.append(shape)
    return joined(values, shapes, dim)


def joined(values: Sequence[Value], shapes: Sequence[DimSizes], dim: int) -> Value:
    """The values behind one another."""
    if len(values) == 1:
        return values[0]
    return Value(
        op="joined", args=tuple(values), dtype=values[0].dtype, move=Join(dim, tuple(shapes))
    )


def _diff(node: fx.Node, get: GetValue) -> Value:
    value, source, target = _base(node, get)
    extra = argument(node, "prepend"), argument(node, "append")
    if argument(node, "n", 1) != 1 or extra != (None, None):
        raise Unsupported("differences of differences")
    dim = int(argument(node, "dim", -1)) % len(source)
    later = _window(value, source, target, {dim: Axis(1)})
    return apply("sub", later, _window(value, source, target, {}))


BUILDERS: dict[str, MoveBuilder] = {
    "slice": _slice, "narrow": _narrow, "select": _select, "part": _part, "flip": _flip,
    "pad": _pad, "constant_pad_nd": _pad, "roll": _roll, "expand": _expand, "expand_as": _expand,
    "repeat": _repeat, "tile": _repeat, "repeat_interleave": _repeat_interleave, "diff": _diff,
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(TURNS, _turn),
    **dict.fromkeys(JOINS, _join),
}  # fmt: skip
