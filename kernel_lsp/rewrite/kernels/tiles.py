"""Two-dimensional tiles that a kernel loads or stores: consecutive indexes along both axes, and
their ends.

`Tiles(kernel).tile(call)` takes the address of a load or store apart: pointer, and for each axis
start, block, stride and extent; a string says why it is no such tile. Pointers that a loop
advances are followed, indexes that wrap around (``rows % M``) are told apart. Standard library
only. Not covered: tiles of other ranks, extents that are no parameter of the kernel, steps of
indexes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, stored_names
from kernel_lsp.rewrite.kernels.terms import (
    Atom,
    TermCounts,
    TermReader,
    add_terms,
    atom,
    below_zero,
    bounds,
    divides,
    key,
    multiply_terms,
)
from kernel_lsp.rewrite.kernels.view import Kernel

UNIQUE = ("at ", " of line ", "loop:")
"""In keys of numbers that may be others at another place, or in another turn of a loop."""


NO_END = "an axis does not end at a parameter of the kernel"


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """The indexes ``start + arange(0, block)``."""

    start: TermCounts
    block: ast.expr
    stride: TermCounts
    extent: str | None
    """Parameter of the kernel; None: the block is the whole axis."""
    bound: str
    """Equal for equal comparisons of the index with the end."""
    wrapped: bool = False
    """Behind the end the kernel reads from the beginning again."""


@dataclass(frozen=True, slots=True)
class MemoryTile:
    """One load or store. Where ``batch`` is (axis of the grid, stride), each program has its own
    matrix."""

    call: ast.Call
    stores: bool
    pointer: str
    axes: tuple[BlockAxis, BlockAxis]
    batch: tuple[int, TermCounts] | None
    filled: bool
    """Lanes behind the end that a mask leaves out are 0, rather than anything."""

    def unlike(self) -> frozenset[tuple[int, str]]:
        """(axis, bound) of lanes in which a load that fills with zeros may give something else."""
        ends = enumerate(self.axes)
        return frozenset(
            (i, a.bound) for i, a in ends if a.extent and (a.wrapped or not self.filled)
        )


class Tiles(TermReader):
    """Whole numbers of a kernel, with ranges that know along which axis of a tile they lie."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.function)
        self.pointers = kernel.pointers()
        self.tl = language(kernel) or "tl"
        self.sizes = {*kernel.launched[0].arguments, *kernel.source.constexprs()}
        ranges = [c.args[1] for c in find_calls(kernel.function, "arange") if len(c.args) == 2]
        self.blocks = {n for end in ranges for n in names_in(end)}

    # --- numbers -----------------------------------------------------------------------------

    def terms(self, node: ast.expr, at: ast.AST | None = None) -> TermCounts:
        """As of the base class; an axis that is put in moves lanes, and a remainder of lanes is one
        term, "wrapped"."""
        match node:
            case ast.Subscript(value=value, slice=place) if (axis := _axis(place)) is not None:
                return _along(self.terms(value, at), axis)
            case ast.BinOp(left=left, op=ast.Mod(), right=right) if _lanes(
                of := self.terms(left, at)
            ):
                text = f"{key(of)} % {key(self.terms(right, at))}"
                return {(Atom("wrapped", text, node),): 1}
        return super().terms(node, at)

    def named(self, name: str, at: ast.AST) -> TermCounts:
        """What a name is at a node, as the base class has it; what a loop adds the same to in each
        turn is known in any turn."""
        if self.definition(name, at) is None and (moved := self._advanced(name, at)) is not None:
            return moved
        return super().named(name, at)

    def _advanced(self, name: str, at: ast.AST) -> TermCounts | None:
        """What a name is in a turn of the loop that adds the same to it in each, once."""
        loop = self._loop_that_sets(name, at)
        said = bounds(loop)
        if loop is None or said is None or not isinstance(loop.target, ast.Name) or loop.orelse:
            return None
        by = _added_each_turn(loop, name, loop.target.id)
        if by is None:
            return None
        first, _, step = (self.terms(e) if e is not None else {} for e in said)
        each = quotient(self.terms(by), step or {(): 1})
        if each is None:
            return None
        turn: TermCounts = {(Atom("loop", f"{loop.target.id} of line {loop.lineno}", loop),): 1}
        return add_terms(self.named(name, loop), multiply_terms(each, add_terms(turn, first, -1)))

    def _loop_that_sets(self, name: str, at: ast.AST) -> ast.For | None:
        """The innermost one around a node."""
        inner, loop = at, self.parent(at)
        while not (isinstance(loop, ast.For) and inner in loop.body and name in stored_names(loop)):
            if loop is self.function:
                return None
            inner, loop = loop, self.parent(loop)
        return loop

    # --- tiles -------------------------------------------------------------------------------

    def tile(self, call: ast.Call, *, stores: bool) -> MemoryTile | str:
        """The tile of ``tl.load(address, …)`` or ``tl.store(address, value, …)``; or why it is
        none."""
        said = _access_arguments(call, stores)
        if said is None:
            return "it says more than mask and other"
        address = self.terms(call.args[0])
        bases = [product for product in address if self._is_pointer(product)]
        if len(bases) != 1 or address[bases[0]] != 1:
            return "its address does not begin at one pointer"
        rest = {p: n for p, n in address.items() if p != bases[0]}
        axes = self._axes(rest, said.get("mask"))
        if isinstance(axes, str):
            return axes
        left = _behind_starts(rest, axes)
        batch = _batch(left)
        if batch is None and left:
            return "its axes do not begin where its mask says"
        filled = "mask" not in said or _is_zero(said.get("other"))
        if "other" in said and not filled:
            return "it fills with something else than 0"
        return MemoryTile(call, stores, bases[0][0].key, axes, batch, filled and not stores)

    def _axes(self, rest: TermCounts, mask: ast.expr | None) -> tuple[BlockAxis, BlockAxis] | str:
        """Both axes of an offset, or why one is none."""
        ends = self.ends(mask) if mask is not None else []
        if ends is None:
            return "its mask is more than ends of the two axes"
        rows, columns = (
            self._axis(rest, axis, [below for at, below in ends if at == axis]) for axis in (0, 1)
        )
        if isinstance(rows, str):
            return rows
        return columns if isinstance(columns, str) else (rows, columns)

    def _is_pointer(self, product: tuple[Atom, ...]) -> bool:
        return len(product) == 1 and product[0].kind == "name" and product[0].key in self.pointers

    def _axis(self, rest: TermCounts, axis: int, ends: list[TermCounts]) -> BlockAxis | str:
        own = _product_along(rest, axis)
        if own is None or len(ends) > 1:
            return "an index is not a range of consecutive numbers times a stride"
        lane = next(a for a in own if a.kind in ("lane", "wrapped lane"))
        stride: TermCounts = {tuple(a for a in own if a is not lane): rest[own]}
        if lane.kind == "wrapped lane":
            assert isinstance(lane.node, ast.BinOp)
            return self._wrapped(lane.node, axis, ends, stride)
        if ends:
            made = self._ended(ends[0], {(lane,): 1}, stride, wrapped=False)
            return made or NO_END
        assert isinstance(lane.node, ast.Call)
        return BlockAxis({}, lane.node.args[1], stride, None, "")

    def _wrapped(
        self, modulo: ast.BinOp, axis: int, ends: list[TermCounts], stride: TermCounts
    ) -> BlockAxis | str:
        index, extent = self.terms(modulo.left), self.terms(modulo.right)
        own_end = _along(add_terms(index, extent, -1), axis)
        end = ends[0] if ends else own_end
        inside = [a for p in index for a in p if a.kind == "arange"]
        if len(inside) != 1 or key(end) != key(own_end):
            return "an index that wraps around is no range of consecutive numbers"
        return self._ended(end, _along({(inside[0],): 1}, axis), stride, wrapped=True) or NO_END

    def _ended(
        self, below: TermCounts, lane: TermCounts, stride: TermCounts, *, wrapped: bool
    ) -> BlockAxis | None:
        """Of ``start + lane - extent``, which is negative inside of the axis."""
        ((one,),) = lane
        left = add_terms(below, lane, -1)
        negative = {p: n for p, n in left.items() if n < 0}
        extent = atom(add_terms({}, negative, -1))
        if extent is None or extent.kind != "name" or extent.key not in self.sizes:
            return None
        if any(map(_of_axes, left)):
            return None
        assert isinstance(one.node, ast.Call)
        start = {p: n for p, n in left.items() if n > 0}
        return BlockAxis(start, one.node.args[1], stride, extent.key, key(below), wrapped)

    def ends(self, mask: ast.expr, axis: int | None = None) -> list[tuple[int, TermCounts]] | None:
        """(axis, what is negative inside of it) of each comparison of a mask; None: it is more
        than that."""
        match mask:
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                first, second = self.ends(left, axis), self.ends(right, axis)
                return None if first is None or second is None else [*first, *second]
            case ast.Subscript(value=value, slice=place) if (
                axis is None and _axis(place) is not None
            ):
                return self.ends(value, _axis(place))
            case ast.Name(id=name):
                match self.definition(name, mask):
                    case ast.Assign(targets=[ast.Name()], value=value):
                        return self.ends(value, axis)
            case ast.Compare():
                end = self._end(mask, axis)
                return None if end is None else [end]
        return None

    def _end(self, compare: ast.Compare, axis: int | None) -> tuple[int, TermCounts] | None:
        below = below_zero(self, compare)
        if below is None:
            return None
        if axis is not None:
            below = _along(below, axis)
        over = [a for p in below for a in _of_axes(p)]
        lanes = [p for p in below if _of_axes(p)]
        is_plain = len(over) == 1 and len(lanes[0]) == 1 and below[lanes[0]] == 1
        return (over[0], below) if is_plain and not _lanes(below) else None

    def begins_blocks(self, axis: BlockAxis) -> bool:
        """The start is a multiple of the block, and not negative."""
        block = self.terms(axis.block)
        return all(n > 0 and self._is_place(p, block) for p, n in axis.start.items())

    def _is_place(self, product: tuple[Atom, ...], block: TermCounts) -> bool:
        if divides(block, {product: 1}):
            left = quotient({product: 1}, block)
            return left is not None and all(self._at_least_0(a) for p in left for a in p)
        said = bounds(product[0].node) if len(product) == 1 and product[0].kind == "loop" else None
        if said is None:
            return False
        first, _, step = (self.terms(e) if e is not None else {} for e in said)
        whole = divides(block, step) and divides(block, first) and self._is_positive(step)
        return whole and all(n > 0 and self._is_place(p, block) for p, n in first.items())

    def _at_least_0(self, one: Atom) -> bool:
        if one.kind == "loop" and (said := bounds(one.node)) is not None:
            first, _, step = (self.terms(e) if e is not None else {} for e in said)
            up = said[2] is None or self._is_positive(step)
            return up and all(n > 0 and all(map(self._at_least_0, p)) for p, n in first.items())
        return one.kind in ("program", "programs")

    def _is_positive(self, step: TermCounts) -> bool:
        """A product of blocks, each the length of a range, of counts of programs and of numbers."""
        good = (
            n > 0 and all(a.kind == "programs" or a.key in self.blocks for a in p)
            for p, n in step.items()
        )
        return bool(step) and all(good)


def _added_each_turn(loop: ast.For, name: str, variable: str) -> ast.expr | None:
    """What the loop's one statement about a name adds to it; None: it may differ between turns."""
    times = stored_names(loop)
    adds = [s for s in loop.body if isinstance(s, ast.AugAssign) and name in names_in(s.target)]
    if len(adds) != 1 or times.count(name) > 1 or times.count(variable) > 1:
        return None
    is_steady = isinstance(adds[0].op, ast.Add) and not names_in(adds[0].value) & set(times)
    return adds[0].value if is_steady else None


def same_everywhere(bound: str) -> bool:
    """The same numbers at every place of a program, whichever turn its loops are in."""
    return not any(word in bound for word in UNIQUE)


def quotient(terms: TermCounts, by: TermCounts) -> TermCounts | None:
    """The quotient of two sums; None: there is none without a rest."""
    if not divides(by, terms):
        return None
    ((factors, count),) = by.items()
    found: TermCounts = {}
    for product, number in terms.items():
        left = list(product)
        for factor in factors:
            left.remove(factor)
        found[tuple(left)] = number // count
    return found


def _batch(left: TermCounts) -> tuple[int, TermCounts] | None:
    """(axis of the grid, stride) of ``program * stride``."""
    if len(left) != 1:
        return None
    ((product, count),) = left.items()
    programs = [a for a in product if a.kind == "program" and a.key.isdecimal()]
    rest = tuple(a for a in product if a.kind != "program")
    if len(programs) != 1 or count != 1 or any(a.kind != "name" for a in rest):
        return None
    return int(programs[0].key), {rest: 1}


def _along(of: TermCounts, axis: int) -> TermCounts:
    """Its ranges lie along this axis of a tile."""
    kinds = {"arange": "lane", "wrapped": "wrapped lane"}
    return {
        tuple(
            Atom(kinds[a.kind], f"{axis} {a.key}", a.node) if a.kind in kinds else a
            for a in product
        ): n
        for product, n in of.items()
    }


def _access_arguments(call: ast.Call, stores: bool) -> dict[str | None, ast.expr] | None:
    """What a load or a store is given besides its address, by name; None: more than is known."""
    after = ("value", "mask") if stores else ("mask", "other")
    said = {k.arg: k.value for k in call.keywords} | dict(zip(after, call.args[1:], strict=False))
    known = {"value", "mask", "other", "eviction_policy", "cache_modifier"}
    return said if 1 <= len(call.args) <= 3 and said.keys() <= known else None


def _behind_starts(rest: TermCounts, axes: Sequence[BlockAxis]) -> TermCounts:
    """What is left of an address without the axes and the places where they begin."""
    left = {product: count for product, count in rest.items() if not _of_axes(product)}
    for axis in axes:
        start = {} if axis.wrapped else multiply_terms(axis.start, axis.stride)
        left = add_terms(left, start, -1)
    return left


def _product_along(rest: TermCounts, axis: int) -> tuple[Atom, ...] | None:
    """The one product of an offset that varies along an axis, and along no other."""
    along = [p for p in rest if axis in _of_axes(p)]
    return along[0] if len(along) == 1 and _of_axes(along[0]) == [axis] else None


def _of_axes(product: tuple[Atom, ...]) -> list[int]:
    return [int(a.key[0]) for a in product if a.kind in ("lane", "wrapped lane")]


def _lanes(of: TermCounts) -> bool:
    """A range that lies along no axis yet."""
    return any(a.kind in ("arange", "wrapped") for product in of for a in product)


def _axis(place: ast.expr) -> int | None:
    """Of ``[:, None]`` 0, of ``[None, :]`` 1."""
    match place:
        case ast.Tuple(elts=[ast.Slice(), ast.Constant(value=None)]):
            return 0
        case ast.Tuple(elts=[ast.Constant(value=None), ast.Slice()]):
            return 1
    return None


def _is_zero(other: ast.expr | None) -> bool:
    return (
        isinstance(other, ast.Constant) and type(other.value) in (int, float) and other.value == 0
    )


def accesses(kernel: Kernel) -> list[tuple[ast.Call, bool]]:
    """Every ``tl.load`` and ``tl.store`` with whether it stores, in the order of the text."""
    found = [
        (c, kind == "store")
        for kind in ("load", "store")
        for c in find_calls(kernel.function, kind)
    ]
    return sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset))
