"""Whole numbers of a kernel or its launcher as sums of products, so that two texts can be shown to
be equal.

`Reader(function).terms(node)` follows names to their one definition, through loops and tuples as
far as the structure of the text shows which one it is. What it does not understand is an atom of
its own, equal to nothing else. Not covered: wrap-around beyond 32 bits, division, and values that
are changed in place."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.source import axis_of

WIDTHS = ("int32", "int64")
HINTS = ("multiple_of", "max_contiguous", "max_constancy", "expand_dims")
PURE = (
    "numel",
    "size",
    "stride",
    "dim",
    "len",
    "min",
    "max",
    "next_power_of_2",
    "cdiv",
    "element_size",
)
"""Calls that give the same whenever their arguments are the same."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A number that is not taken apart."""

    kind: str
    """name, program (its axis first) and programs, arange (from 0), loop (its variable), cdiv,
    other."""
    key: str
    """Equal only for equal numbers."""
    node: ast.AST | None = None
    """The loop, or an expression of this value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and (self.kind, self.key) == (other.kind, other.key)

    def __hash__(self) -> int:
        return hash((self.kind, self.key))


TermCounts = dict[tuple[Atom, ...], int]
"""Product of atoms (sorted) -> how often it is added. Zeros are left out."""


def key(terms: TermCounts) -> str:
    """One text for equal sums."""
    named = (
        f"{count}*" + "*".join(f"{a.kind}:{a.key}" for a in product)
        for product, count in terms.items()
    )
    return "(" + "+".join(sorted(named)) + ")"


def add_terms(left: TermCounts, right: TermCounts, sign: int = 1) -> TermCounts:
    """The sum of both, or with ``sign`` -1 their difference; terms that cancel are left out."""
    found = dict(left)
    for product, count in right.items():
        found[product] = found.get(product, 0) + sign * count
    return {product: count for product, count in found.items() if count}


def multiply_terms(left: TermCounts, right: TermCounts) -> TermCounts:
    """The product of both."""
    found: TermCounts = {}
    for a, m in left.items():
        for b, n in right.items():
            product = tuple(sorted((*a, *b), key=lambda atom: (atom.kind, atom.key)))
            found = add_terms(found, {product: m * n})
    return found


def atom(terms: TermCounts) -> Atom | None:
    """The one atom that the sum is."""
    match list(terms.items()):
        case [((Atom() as one,), 1)]:
            return one
    return None


def divides(divisor: TermCounts, terms: TermCounts) -> bool:
    """Every product of the sum has the divisor as a factor: it is one product, or a number."""
    if len(divisor) != 1:
        return False
    ((factors, count),) = divisor.items()
    return all(
        number % count == 0 and all(product.count(f) >= factors.count(f) for f in factors)
        for product, number in terms.items()
    )


class TermReader:
    """One function. ``given``: what ``meta["NAME"]`` is in a launcher's grid that is a lambda of
    ``meta``."""

    def __init__(
        self,
        function: FunctionNode,
        given: Mapping[str, TermCounts] | None = None,
        meta: str | None = None,
    ) -> None:
        self.function = function
        self.given = given or {}
        self.meta = meta
        self._parents = {id(c): p for p in ast.walk(function) for c in ast.iter_child_nodes(p)}

    # --- names -------------------------------------------------------------------------------

    def definition(self, name: str, at: ast.AST) -> ast.AST | None:
        """The statement or parameter that gives a name its value at a node; the loop whose
        variable it is. None: it cannot be said which one, or it is defined outside of the
        function."""
        node = at
        while node is not self.function:
            parent = self._parents[id(node)]
            for earlier in reversed(_before(parent, node)):
                if _binds(earlier, name):
                    plain = isinstance(earlier, ast.Assign | ast.AnnAssign | ast.AugAssign)
                    return earlier if plain else None
            if _is_repeated(parent, node):
                if _binds_in_rounds(parent, name):
                    return None  # it may be what an earlier round has left
                if isinstance(parent, ast.For) and _binds(parent.target, name):
                    return parent if _is_name(parent.target, name) else None
            if isinstance(parent, ast.Lambda) and any(a.arg == name for a in parent.args.args):
                return None
            node = parent
        given = self.function.args
        every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
        return next((a for a in every if a.arg == name), None)

    def is_bound(self, name: str) -> bool:
        """Whether the name is bound somewhere in the function, or as its parameter."""
        return _binds(self.function, name) or any(
            isinstance(n, ast.arg) and n.arg == name for n in ast.walk(self.function.args)
        )

    def parent(self, node: ast.AST) -> ast.AST:
        """The node that the node stands in."""
        return self._parents[id(node)]

    # --- numbers -----------------------------------------------------------------------------

    def terms(self, node: ast.expr, at: ast.AST | None = None) -> TermCounts:
        """The expression as a sum of products. ``at``: where names are looked up, for a lambda that
        runs later; otherwise where they stand."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return {(): value} if value else {}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return add_terms({}, self.terms(operand, at), -1)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                return add_terms(
                    self.terms(left, at),
                    self.terms(right, at),
                    1 if isinstance(op, ast.Add) else -1,
                )
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return multiply_terms(self.terms(left, at), self.terms(right, at))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right) if (
                rounded := self._rounded_up(left, right, at)
            ) is not None:
                return rounded
            case ast.Name(id=name):
                return self.named(name, at or node)
            case ast.Subscript(value=ast.Name(id=meta), slice=ast.Constant(value=str(name))) if (
                meta == self.meta and name in self.given
            ):
                return self.given[name]
            case ast.Subscript(value=value, slice=place) if only_shapes(place):
                return self.terms(value, at)
            case ast.Call():
                return self._called(node, at)
        return self._other(node, at)

    def named(self, name: str, at: ast.AST) -> TermCounts:
        """What a name is at a node, as a sum of products; the name itself where its definition
        tells nothing."""
        found = self.definition(name, at)
        match found:
            case ast.Assign(targets=[target], value=value) if _is_name(target, name):
                return self.terms(value)
            case ast.AnnAssign(value=ast.expr() as value):
                return self.terms(value)
            case ast.AugAssign(target=ast.Name(), op=ast.Add() | ast.Sub() as op, value=value):
                return add_terms(
                    self.named(name, found),
                    self.terms(value),
                    1 if isinstance(op, ast.Add) else -1,
                )
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Call() as call) if (
                axis := self._swizzled(call, [_is_name(part, name) for part in parts])
            ) is not None:
                return _one(Atom("program", f"{axis} swizzled in line {call.lineno}"))
            case ast.Assign(lineno=line):
                return _one(Atom("name", f"{name} of line {line}"))
            case ast.For(lineno=line):
                return _one(Atom("loop", f"{name} of line {line}", found))
            case ast.arg():
                return _one(Atom("name", name))
        if not self.is_bound(name):
            return _one(Atom("name", f"{name} of the file"))
        return _one(Atom("other", f"{name} at {_place(at)}"))

    def _swizzled(self, call: ast.Call, which: list[bool]) -> int | None:
        """The axis of the grid whose programs ``tl.swizzle2d`` puts into another order."""
        if (
            not ast.unparse(call.func).endswith("swizzle2d")
            or True not in which
            or len(call.args) != 5
        ):
            return None
        places, sizes = (
            [atom(self.terms(a)) for a in part] for part in (call.args[:2], call.args[2:4])
        )
        for place, size in zip(places, sizes, strict=True):
            if place is None or size is None or (place.kind, size.kind) != ("program", "programs"):
                return None
            if place.key != size.key:
                return None
        place = places[which.index(True)]
        return int(place.key) if place is not None else None

    def _rounded_up(self, left: ast.expr, right: ast.expr, at: ast.AST | None) -> TermCounts | None:
        """``(extent + block - 1) // block``, which is ``cdiv(extent, block)``."""
        whole, block = self.terms(left, at), self.terms(right, at)
        extent = add_terms(add_terms(whole, block, -1), {(): 1})
        if len(block) != 1 or len(extent) >= len(whole):
            return None
        return _one(Atom("cdiv", f"{key(extent)} by {key(block)}"))

    def _called(self, call: ast.Call, at: ast.AST | None) -> TermCounts:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        if isinstance(call.func, ast.Name) and call.func.id == "cdiv":
            name = "cdiv"
        match name, call.args:
            case "program_id" | "num_programs", _ if (axis := axis_of(call)) is not None:
                return _one(Atom("program" if name == "program_id" else "programs", str(axis)))
            case "arange", [ast.Constant(value=0), end]:
                return _one(Atom("arange", key(self.terms(end, at)), call))
            case "cdiv", [extent, block]:
                parts = key(self.terms(extent, at)), key(self.terms(block, at))
                return _one(Atom("cdiv", " by ".join(parts), call))
            case "to", [ast.Attribute(attr=width)] if width in WIDTHS:
                assert isinstance(call.func, ast.Attribute)
                return self.terms(call.func.value, at)
            case hint, [value, *_] if hint in HINTS:
                return self.terms(value, at)
        return self._other(call, at)

    def _other(self, node: ast.expr, at: ast.AST | None) -> TermCounts:
        """An expression that gives the same number wherever its names are the same, or something
        unique."""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        if not is_pure(node) or any(self._is_changed(n.id) for n in names):
            return _one(Atom("other", f"at {_place(node)}", node))
        known = (key(self.named(n.id, at or n)) for n in names)
        return _one(Atom("other", f"{ast.unparse(node)} of {', '.join(known)}", node))

    def _is_changed(self, name: str) -> bool:
        """A part of it is set, or a method is used whose name ends as torch's do that work in
        place."""
        parts = (n for n in ast.walk(self.function) if isinstance(n, ast.Attribute | ast.Subscript))
        return any(
            isinstance(n.ctx, ast.Store) or (isinstance(n, ast.Attribute) and _is_in_place(n.attr))
            for n in parts
            if _is_name(n.value, name)
        )


def _is_in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def is_pure(node: ast.expr) -> bool:
    """Nothing but names, attributes, numbers, arithmetic and calls that only ask for sizes."""
    allowed = (
        ast.Name
        | ast.Attribute
        | ast.Constant
        | ast.BinOp
        | ast.UnaryOp
        | ast.Subscript
        | ast.operator
    )
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            said = one.func.attr if isinstance(one.func, ast.Attribute) else ast.unparse(one.func)
            if said not in PURE:
                return False
        elif not isinstance(one, allowed | ast.unaryop | ast.expr_context | ast.keyword):
            return False
    return True


def below_zero(reader: TermReader, node: ast.Compare) -> TermCounts | None:
    """The sum that a comparison says to be negative; None: it says something else."""
    if len(node.ops) != 1:
        return None
    left, right = reader.terms(node.left), reader.terms(node.comparators[0])
    match node.ops[0]:
        case ast.Lt():
            return add_terms(left, right, -1)
        case ast.Gt():
            return add_terms(right, left, -1)
        case ast.LtE():
            return add_terms(add_terms(left, right, -1), {(): 1}, -1)
        case ast.GtE():
            return add_terms(add_terms(right, left, -1), {(): 1}, -1)
    return None


def bounds(loop: ast.AST | None) -> tuple[ast.expr | None, ast.expr, ast.expr | None] | None:
    """(first, end, step) of a loop over a range, in Python's or Triton's words; None: over
    something else."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return None
    name = ast.unparse(loop.iter.func).split(".")[-1]
    match loop.iter.args:
        case _ if name not in ("range", "static_range"):
            return None
        case [end]:
            return None, end, None
        case [first, end]:
            return first, end, None
        case [first, end, step]:
            return first, end, step
    return None


def _one(value: Atom) -> TermCounts:
    return {(value,): 1}


def _before(parent: ast.AST, node: ast.AST) -> list[ast.stmt]:
    """Statements that stand before a node in the same block."""
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and any(node is one for one in block):
            place = next(i for i, one in enumerate(block) if one is node)
            return [one for one in block[:place] if isinstance(one, ast.stmt)]
    return []


def _is_repeated(parent: ast.AST, node: ast.AST) -> bool:
    """A loop that runs the node in every round."""
    return isinstance(parent, ast.While) or (
        isinstance(parent, ast.For) and node is not parent.iter
    )


def _binds_in_rounds(loop: ast.AST, name: str) -> bool:
    assert isinstance(loop, ast.For | ast.While)
    return any(_binds(inside, name) for inside in (*loop.body, *loop.orelse))


def _binds(node: ast.AST, name: str) -> bool:
    for one in ast.walk(node):
        match one:
            case ast.Name(id=found, ctx=ast.Store() | ast.Del()) if found == name:
                return True
            case ast.FunctionDef(name=found) | ast.alias(asname=found) if found == name:
                return True
    return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def only_shapes(place: ast.expr) -> bool:
    """Whether an index is like ``[:, None]``: the same numbers along other axes."""
    parts = place.elts if isinstance(place, ast.Tuple) else [place]
    return all(
        isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is None) for p in parts
    )


def _place(node: ast.AST) -> str:
    return f"{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}"
