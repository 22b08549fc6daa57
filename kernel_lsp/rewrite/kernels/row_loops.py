"""Rows that a program goes through in pieces, loop after loop: what all these loops have in
common.

Standard library only. Not covered: pieces of more than one axis, loops inside of branches or other
loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import launchers
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, stored_names
from kernel_lsp.rewrite.kernels.values import REDUCTIONS, KernelValues, PointerArguments
from kernel_lsp.rewrite.kernels.view import Kernel

PLAIN = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


@dataclass(frozen=True, slots=True)
class Looped:
    """``for start in range(0, extent, block)``, twice or more at the top of the kernel."""

    extent: str
    """Parameter that all loops go up to."""
    block: str
    """constexpr by which they advance."""
    loops: tuple[ast.For, ...]
    body: tuple[ast.stmt, ...]
    """All of the kernel, without its docstring."""

    def starts(self) -> set[str]:
        """The names of the loops' variables."""
        return {loop.target.id for loop in self.loops if isinstance(loop.target, ast.Name)}


def find_loop(kernel: Kernel) -> Looped | None:
    """The loops of the kernel over one row; None: it is not written like that."""
    body = [s for s in kernel.function.body if not _is_text(s)]
    loops = [s for s in body if isinstance(s, ast.For)]
    if len(loops) < 2 or not all(isinstance(s, (*PLAIN, ast.For)) for s in body):
        return None
    bounds = _bounds(loops[0])
    if bounds is None or any(_bounds(loop) != bounds for loop in loops):
        return None
    found = Looped(*bounds, tuple(loops), tuple(body))
    return found if _has_fixed_bounds(kernel, found) and not _meet(found) else None


def _has_fixed_bounds(kernel: Kernel, found: Looped) -> bool:
    """The loops go by parameters, and no parameter is changed."""
    parameters = {a.arg for a in kernel.function.args.args}
    changed = {name for s in found.body for name in stored_names(s)}
    given = found.extent in parameters and found.block in kernel.source.constexprs()
    return given and not changed & parameters


def _meet(found: Looped) -> bool:
    """A loop's variable is used as something else, too."""
    inside = {id(n) for loop in found.loops for n in ast.walk(loop)}
    outside = [n for s in found.body for n in ast.walk(s) if id(n) not in inside]
    used = {n.id for n in outside if isinstance(n, ast.Name)}
    set_again = {name for loop in found.loops for s in loop.body for name in stored_names(s)}
    return bool(found.starts() & (used | set_again))


def _bounds(loop: ast.For) -> tuple[str, str] | None:
    match loop:
        case ast.For(
            target=ast.Name(),
            iter=ast.Call(
                func=func,
                args=[ast.Constant(value=0), ast.Name(id=extent), ast.Name(id=block)],
            ),
            orelse=[],
        ) if ast.unparse(func).split(".")[-1] == "range" and all(
            isinstance(s, PLAIN) for s in loop.body
        ):
            return extent, block
    return None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def values_of(kernel: Kernel, found: Looped) -> KernelValues:
    """The values of a kernel that is looped like this, with pointers known to be apart where the
    launcher shows it."""
    names = frozenset(kernel.pointers())
    pairs = ((a, b) for a in names for b in names if a != b)
    apart = frozenset((a, b) for a, b in pairs if launchers.separate(kernel, a, b))
    return KernelValues(found.extent, names, apart)


def once(values: KernelValues, found: Looped) -> list[PointerArguments]:
    """Runs the kernel's statements on ``values`` as if each loop had one turn, that of index 0, and
    returns the loads and stores that stand inside of loops, in order."""
    inside: list[PointerArguments] = []
    for statement in found.body:
        if isinstance(statement, ast.For):
            assert isinstance(statement.target, ast.Name)
            values.names[statement.target.id] = values.of(ast.Constant(0))
            before = len(values.accesses)
            for inner in statement.body:
                values.run(inner)
            inside += values.accesses[before:]
        else:
            values.run(statement)
    return inside


# --- what a loop hands on ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A name that each turn of a loop adds to, or takes a maximum or minimum with."""

    name: str
    kind: str
    """sum, max or min."""
    term: ast.expr
    """What is added: of one lane, before ``tl.sum`` and the like."""
    scalar: bool
    """Each turn reduces its block; else each lane has its own share, reduced after the loop."""
    statement: ast.stmt


def accumulations(found: Looped, loop: ast.For) -> list[Accumulation] | None:
    """All that the loop hands on to its next turn or to what follows; None: something else is
    handed on, too, or something depends on which columns a piece has."""
    handed = _handed_on(found, loop)
    made = []
    for name in handed:
        one = _accumulation(loop, name)
        if one is None or names_in(one.term) & set(handed):
            return None
        if not one.scalar and not _is_reduced(found, one):
            return None
        made.append(one)
    terms = [one.term for one in made if one.scalar]
    reduced = [c for s in loop.body for kind in REDUCTIONS for c in find_calls(s, kind)]
    is_whole = _only_places(loop) and all(c.args and c.args[0] in terms for c in reduced)
    return made if is_whole else None


def _handed_on(found: Looped, loop: ast.For) -> list[str]:
    """Names that the next turn or what follows may read, in the order in which they are set."""
    inside = {id(n) for n in ast.walk(loop)}
    outside = {n.id for n in _names(found.body) if id(n) not in inside}
    changed = [name for s in loop.body for name in stored_names(s)]
    handed = {name for name in changed if name in outside and _lives(found, loop, name)}
    for statement in loop.body:
        match statement:
            case ast.AugAssign(target=ast.Name(id=name)):
                handed.add(name)
    return sorted(handed, key=changed.index)


def _lives(found: Looped, loop: ast.For, name: str) -> bool:
    """It is known before the loop, or read behind it before it is set anew."""
    at = found.body.index(loop)
    if any(name in stored_names(s) for s in found.body[:at]):
        outer = [s for s in found.body[:at] if not isinstance(s, ast.For)]
        if name in {n.id for n in _names(outer)}:
            return True
    for statement in _flat(found.body[at + 1 :]):
        if isinstance(statement, ast.AugAssign):
            if name in names_in(statement):
                return True
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            if statement.value is not None and name in names_in(statement.value):
                return True
            if name in stored_names(statement):
                return False
        elif name in names_in(statement):
            return True
    return False


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield from statement.body if isinstance(statement, ast.For) else (statement,)


def _names(body: Sequence[ast.stmt]) -> Iterator[ast.Name]:
    return (n for s in body for n in ast.walk(s) if isinstance(n, ast.Name))


def _accumulation(loop: ast.For, name: str) -> Accumulation | None:
    at = [s for s in loop.body if any(n.id == name for n in _names([s]))]
    if len(at) != 1:
        return None
    kind, term = _step(at[0], name)
    if term is None or name in names_in(term):
        return None
    match term:
        case ast.Call(func=ast.Attribute(attr=attr), args=[inner, *_]) if attr == kind:
            return Accumulation(name, kind, inner, True, at[0])
    return Accumulation(name, kind, term, False, at[0])


def _step(statement: ast.stmt, name: str) -> tuple[str, ast.expr | None]:
    """(sum, max or min, what the name is combined with); None for every other statement."""
    match statement:
        case ast.AugAssign(op=ast.Add(), value=term):
            return "sum", term
        case ast.Assign(value=ast.BinOp(left=left, op=ast.Add(), right=right)):
            return "sum", _beside(left, right, name)
        case ast.Assign(
            value=ast.Call(
                func=ast.Attribute(attr="maximum" | "minimum" as f), args=[a, b], keywords=[]
            )
        ):
            return f[:3], _beside(a, b, name)
    return "", None


def _beside(left: ast.expr, right: ast.expr, name: str) -> ast.expr | None:
    """The other one of the two, where one is the name."""
    if _is(left, name):
        return right
    return left if _is(right, name) else None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_reduced(found: Looped, one: Accumulation) -> bool:
    """Outside of its loop the name is only made, and taken through the reduction that fits."""
    taken = {
        id(call.args[0])
        for s in found.body
        for call in ast.walk(s)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == one.kind
        if call.args
    }
    own = {id(n) for n in ast.walk(one.statement)}
    reads = [n for n in _names(found.body) if n.id == one.name and isinstance(n.ctx, ast.Load)]
    return all(id(n) in taken or id(n) in own for n in reads)


def _only_places(loop: ast.For) -> bool:
    """The loop's variable only says which columns a block has: ``start + tl.arange(0, …)``."""
    assert isinstance(loop.target, ast.Name)
    places = {
        id(side)
        for s in loop.body
        for sum_ in ast.walk(s)
        if isinstance(sum_, ast.BinOp) and isinstance(sum_.op, ast.Add)
        for side, other in ((sum_.left, sum_.right), (sum_.right, sum_.left))
        if isinstance(other, ast.Call) and ast.unparse(other.func).endswith(".arange")
    }
    return all(id(n) in places for n in _names(loop.body) if n.id == loop.target.id)
