"""Along which axes of a kernel's values the lanes of one block lie, and what is reduced over them.

`Reach(function, block).reductions()`: every call that puts lanes of the block together, or hands
them on from one to the next. Axes are read from the text: ranges, `[:, None]`, products,
transposes. Standard library only. Not covered: reshaped values (their lanes lie where they lay),
and what a kernel's own functions do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.source import assignments, names_in, operand

SHAPES = ("zeros", "full", "empty")
AXES = {
    **dict.fromkeys(
        ("sum", "max", "min", "xor_sum", "argmax", "argmin", "reduce", "reduce_or"), None
    ),
    **dict.fromkeys(("cumsum", "cumprod", "associative_scan"), 0),
    **dict.fromkeys(("sort", "topk", "flip", "softmax"), -1),
}
"""Calls that put lanes together or into an order, and the axis along which they do, unsaid; None:
all."""


@dataclass(frozen=True, slots=True)
class LaneAxes:
    """Of a value: how many axes it has, and along which the block lies."""

    rank: int = 0
    axes: frozenset[int] = frozenset()

    def with_(self, other: LaneAxes) -> LaneAxes:
        """The axes of a value that is computed from both."""
        return LaneAxes(max(self.rank, other.rank), self.axes | other.axes)

    def over(self, axis: int | None) -> bool:
        """The block lies along this axis, counted from the end where it is negative."""
        return bool(self.axes) if axis is None else axis % max(self.rank, 1) in self.axes


class Reach:
    def __init__(self, function: FunctionNode, block: str) -> None:
        self.function, self.block = function, block
        self._known: dict[str, LaneAxes] = {}

    def reductions(self) -> Iterator[ast.Call]:
        """Calls that reduce over the axis along which the block lies, products included."""
        for node in ast.walk(self.function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            given = _arguments(node)
            if node.func.attr in AXES and given and self.of(given[0]).over(_axis(node)):
                yield node
            elif node.func.attr == "dot" and len(given) > 1:
                left, right = self.of(given[0]), self.of(given[1])
                if left.over(1) or right.over(0):
                    yield node

    def of(self, node: ast.expr) -> LaneAxes:
        """Along which axes of an expression's value the block lies."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Subscript(value=value, slice=place):
                return _place_axes(self.of(value), place)
            case ast.Attribute(value=value, attr="T"):
                return _swap_axes(self.of(value))
            case ast.Call(func=ast.Attribute(attr=name)) if not _is_program(name):
                return self._called(name, node)
            case (
                ast.Tuple()
                | ast.List()
                | ast.BinOp()
                | ast.UnaryOp()
                | ast.Compare()
                | ast.BoolOp()
            ):
                return self._together(
                    c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)
                )
            case ast.IfExp(body=body, orelse=orelse):
                return self._together((body, orelse))
            case ast.Call(func=ast.Name()):
                return self._together(_arguments(node))
        return LaneAxes()

    def _together(
        self, nodes: Iterator[ast.expr] | tuple[ast.expr, ...] | list[ast.expr]
    ) -> LaneAxes:
        found = LaneAxes()
        for one in nodes:
            found = found.with_(self.of(one))
        return found

    def _named(self, name: str) -> LaneAxes:
        """Of all that the name is set to, until nothing is added: a loop may hand lanes on."""
        if name not in self._known:
            self._known[name] = LaneAxes()
            before = None
            while before != self._known[name]:
                before = self._known[name]
                found = self._together(list(assignments(self.function).get(name, ())))
                self._known[name] = before.with_(found)
        return self._known[name]

    def _called(self, name: str, call: ast.Call) -> LaneAxes:
        given = _arguments(call)
        if name == "arange":
            own = any(self.block in names_in(one) for one in given)
            return LaneAxes(1, frozenset({0} if own else ()))
        return self._of_arguments(name, call, given) if given else self._together(given)

    def _of_arguments(self, name: str, call: ast.Call, given: list[ast.expr]) -> LaneAxes:
        first = given[0]
        if name in SHAPES and isinstance(first, ast.Tuple | ast.List):
            own = (i for i, size in enumerate(first.elts) if self.block in names_in(size))
            return LaneAxes(len(first.elts), frozenset(own))
        if name == "load":
            return self.of(first)
        if name == "dot" and len(given) > 1:
            left, right = self.of(first), self.of(given[1])
            axes = (left.axes & {0}) | (right.axes & {1})
            return LaneAxes(2, axes).with_(self._together(given[2:]))
        if name == "trans" and len(given) == 1:
            return _swap_axes(self.of(first))
        if name in AXES and AXES[name] is None:
            return _without(self.of(first), call)
        return self._together(given)


def _is_program(name: str) -> bool:
    return name in ("program_id", "num_programs", "cdiv")


def _arguments(call: ast.Call) -> list[ast.expr]:
    """What is computed with: also the value whose method is called."""
    method = isinstance(call.func, ast.Attribute) and not _is_language(call.func.value)
    own = [call.func.value] if method and isinstance(call.func, ast.Attribute) else []
    return [
        *own,
        *call.args,
        *(k.value for k in call.keywords if k.arg not in ("axis", "dim", "dtype")),
    ]


def _is_language(node: ast.expr) -> bool:
    """``tl`` or a module of it, by any name: a value is a name that the kernel sets, or a computed
    one."""
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).split(".")[0] in (
        "tl",
        "language",
        "triton",
        "libdevice",
    )


def _axis(call: ast.Call) -> int | None:
    assert isinstance(call.func, ast.Attribute)
    said = operand(call, 1 if _is_language(call.func.value) else 0, "axis") or operand(
        call, 9, "dim"
    )
    if said is None:
        return AXES[call.func.attr]
    try:
        found = ast.literal_eval(said)
    except ValueError:
        return None
    return found if isinstance(found, int) else None


def _place_axes(lanes: LaneAxes, place: ast.expr) -> LaneAxes:
    """``[:, None]``: each slice is the next of the value's own axes."""
    parts = place.elts if isinstance(place, ast.Tuple) else [place]
    if not all(
        isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is None) for p in parts
    ):
        return lanes
    own = [at for at, part in enumerate(parts) if isinstance(part, ast.Slice)]
    return LaneAxes(len(parts), frozenset(own[a] for a in lanes.axes if a < len(own)))


def _swap_axes(lanes: LaneAxes) -> LaneAxes:
    return LaneAxes(lanes.rank, frozenset(1 - a if a < 2 else a for a in lanes.axes))


def _without(lanes: LaneAxes, call: ast.Call) -> LaneAxes:
    """After a reduction over an axis."""
    axis = _axis(call)
    if axis is None:
        return LaneAxes()
    axis %= max(lanes.rank, 1)
    if any(k.arg in ("keep_dims", "keepdims") for k in call.keywords):
        return LaneAxes(lanes.rank, lanes.axes - {axis})
    return LaneAxes(lanes.rank - 1, frozenset(a - (a > axis) for a in lanes.axes - {axis}))
