"""Whether the accesses of a kernel go from block to block of an axis, statement by statement.

`Moving(function, block).at(call, node)`: what a part of an access may be when the kernel comes
there, one for each way that leads there: FREE of the block, HELD at one block, or it MOVES. What
another branch sets, or a loop further down, says nothing of it. Standard library only. Not
covered: how far a loop goes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.lane_axes import Reach
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, pairs, stored_names

FREE, HELD, MOVES = 0, 1, 2
PathStates = frozenset[int]
"""One of the three for each path."""
ANY: PathStates = frozenset((FREE, HELD, MOVES))
ROUNDS = 4
"""Turns of a loop after which what it hands on is as it stays; else nothing is said of it."""


class Moving:
    def __init__(self, function: FunctionNode, block: str) -> None:
        self.block = block
        self._lanes = Reach(function, block)
        self._names: dict[str, PathStates] = {
            a.arg: frozenset((FREE,)) for a in ast.walk(function.args) if isinstance(a, ast.arg)
        }
        self._names[block] = frozenset((HELD,))
        self._before: dict[ast.Call, Mapping[str, PathStates]] = {}
        self._run(function.body)

    def at(self, call: ast.Call, node: ast.expr) -> PathStates:
        """The states of an operand's path at the call."""
        names = self._before.get(call)
        return ANY if names is None else self._of(node, names)

    # --- expressions ---------------------------------------------------------------------------

    def _of(self, node: ast.expr, names: Mapping[str, PathStates]) -> PathStates:
        """A name or a sum with the block's length is one block further."""
        further = isinstance(node, ast.Name | ast.BinOp) and self.block in names_in(node)
        return (
            frozenset((MOVES,))
            if further and not find_calls(node, "arange")
            else self._part(node, names)
        )

    def _part(self, node: ast.AST, names: Mapping[str, PathStates]) -> PathStates:
        match node:
            case ast.Name(id=name):
                return names.get(name, frozenset((FREE,)))
            case ast.IfExp(body=body, orelse=orelse):
                return self._of(body, names) | self._of(orelse, names)
            case ast.BinOp(op=ast.Mult()) if self.block in names_in(node):
                return frozenset((MOVES,))
            case ast.Call() if self._goes_through(node):
                return frozenset((MOVES,))
        found = frozenset((FREE,))
        for child in ast.iter_child_nodes(node):
            found = frozenset(
                max(one, other) for one in found for other in self._part(child, names)
            )
        return found

    def _goes_through(self, node: ast.expr) -> bool:
        """A range of blocks."""
        function = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
        return function in ("range", "static_range") and self.block in names_in(node)

    # --- statements ----------------------------------------------------------------------------

    def _run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._see(test)
                before = dict(self._names)
                self._run(body)
                one, self._names = self._names, before
                self._run(orelse)
                self._names = _either(one, self._names)
            case ast.For(target=target, iter=given, body=body, orelse=orelse):
                self._see(given)
                self._loop(body, target, given)
                self._run(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self._loop([ast.Expr(test), *body])
                self._run(orelse)
            case ast.Assign(targets=targets, value=value):
                self._see(value)
                made = [pair for target in targets for pair in pairs(target, value)]
                self._set([(name, self._of(part, self._names)) for name, part in made])
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._see(value)
                self._set([(target, self._of(value, self._names))])
            case ast.AugAssign(target=target, value=value):
                self._see(value)
                own, more = self._part(target, self._names), self._of(value, self._names)
                self._set([(target, frozenset(max(a, b) for a in own for b in more))])
            case ast.Expr() | ast.Return() | ast.Assert():
                self._see(statement)
            case _:
                self._set([(ast.Name(name), ANY) for name in stored_names(statement)])
                self._see(statement)

    def _see(self, node: ast.AST) -> None:
        for inside in ast.walk(node):
            if isinstance(inside, ast.NamedExpr):
                self._set([(inside.target, self._of(inside.value, self._names))])
        now = dict(self._names)
        self._before |= {call: now for call in ast.walk(node) if isinstance(call, ast.Call)}

    def _set(self, made: Sequence[tuple[ast.expr, PathStates]]) -> None:
        for target, places in made:
            self._names |= dict.fromkeys(names_in(target), places)

    def _loop(
        self,
        body: Sequence[ast.stmt],
        target: ast.expr | None = None,
        given: ast.expr | None = None,
    ) -> None:
        """Until its turns hand on the same. What it moves is in its first turn where it was set to
        before."""
        entry = dict(self._names)
        for _ in range(ROUNDS):
            head = dict(self._names)
            if target is not None and given is not None:
                self._set([(target, self._of(given, self._names))])
            self._run(body)
            self._names = _handed_on(entry, self._names)
            if self._names == head:
                break
        else:
            self._set([(ast.Name(name), ANY) for one in body for name in stored_names(one)])
            self._run(body)
        if target is not None and given is not None and self._goes_through(given):
            self._leave(entry, names_in(target))

    def _leave(self, entry: Mapping[str, PathStates], targets: set[str]) -> None:
        """Behind a loop over the blocks its variable, and lanes that came with it, stay at the
        last one."""
        for name, places in self._names.items():
            own = name in targets or bool(self._lanes.of(ast.Name(name)).axes)
            if own and MOVES in places and entry.get(name) != frozenset((MOVES,)):
                self._names[name] = places - {MOVES} | {HELD}


def _either(
    one: Mapping[str, PathStates], other: Mapping[str, PathStates]
) -> dict[str, PathStates]:
    """Behind two branches; a name that only one of them knows is not read behind the other."""
    return {
        name: one.get(name, frozenset()) | other.get(name, frozenset()) for name in {**one, **other}
    }


def _handed_on(
    entry: Mapping[str, PathStates], end: Mapping[str, PathStates]
) -> dict[str, PathStates]:
    """Before a turn of a loop: what was known before it, or what the turn before has left."""
    made = _either(entry, end)
    moved = [name for name, places in end.items() if MOVES in places and HELD not in places]
    return made | {name: made[name] - {HELD} for name in moved}
