"""Lanes of a tile that hold other numbers than before: do they ever leave the kernel?

`escape(kernel, tiles, changed)` follows them from loads through arithmetic, products and loops to
the stores, whose masks must leave them out. Standard library only. Not covered: reductions of such
lanes, and branches that depend on them; both count as escapes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from kernel_lsp.rewrite.kernels.source import names_in
from kernel_lsp.rewrite.kernels.terms import key
from kernel_lsp.rewrite.kernels.tiles import Tiles, same_everywhere
from kernel_lsp.rewrite.kernels.values import LANEWISE
from kernel_lsp.rewrite.kernels.view import Kernel

LaneSet = frozenset[tuple[int, str]]
"""(axis, bound): the lanes along this axis that are behind this end."""
NONE: LaneSet = frozenset()
ELEMENTWISE = LANEWISE - {"min", "max", "float", "int"} | {"where", "cast"}
"""Of the language: there ``min`` and ``max`` reduce."""


class _Escapes(Exception):
    """With where."""


def escape(kernel: Kernel, tiles: Tiles, changed: Mapping[ast.Call, LaneSet]) -> str | None:
    """The statement by which changed lanes may be seen; None: by none. ``changed``: of loads."""
    bounds = {bound for lanes in changed.values() for _, bound in lanes}
    if moving := [bound for bound in bounds if not same_everywhere(bound)]:
        return f"an end that moves with a loop ({moving[0]})"
    flow = _LaneFlow(tiles, changed)
    try:
        flow.run(kernel.function.body)
    except _Escapes as error:
        return str(error)
    return None


class _LaneFlow:
    def __init__(self, tiles: Tiles, changed: Mapping[ast.Call, LaneSet]) -> None:
        self.tiles, self.changed, self.tl = tiles, changed, tiles.tl
        self.names: dict[str, LaneSet] = {}

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Follow the statements in their order."""
        for statement in body:
            self._run(statement)

    def _run(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.names[name] = self.of(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.names[name] = self.names.get(name, NONE) | self.of(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.names[name] = self.of(value)
            case ast.For(target=ast.Name(id=name), body=body, orelse=[]):
                self._unseen(statement.iter)
                self.names[name] = NONE
                before: dict[str, LaneSet] | None = None
                while before != self.names:  # a turn only adds lanes, of finitely many
                    before = dict(self.names)
                    self.run(body)
                    self.names = {
                        n: before.get(n, NONE) | self.names.get(n, NONE) for n in self.names
                    }
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=self.tl), attr="store")) as call
            ):
                self._store(call)
            case _:
                self._unseen(statement)
                stored = {
                    n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and _is_set(n)
                }
                if any(self.names.get(n) for n in stored):
                    raise _Escapes(_describe_node(statement))

    def _store(self, call: ast.Call) -> None:
        given = dict(zip(("pointer", "value", "mask"), call.args, strict=False))
        given |= {str(k.arg): k.value for k in call.keywords}
        value, mask = given.get("value"), given.get("mask")
        for name, node in given.items():
            if name != "value":
                self._unseen(node)
        lanes = self.of(value) if value is not None else NONE
        if lanes:
            ends = self.tiles.ends(mask) if mask is not None else None
            if not lanes <= {(axis, key(below)) for axis, below in ends or ()}:
                raise _Escapes(_describe_node(call))

    def of(self, node: ast.expr) -> LaneSet:
        """Lanes of the value that may be others. Raises _Escapes where it cannot be followed."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name, NONE)
            case ast.Call() if node in self.changed:
                self._unseen_below(node)
                return self.changed[node]
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
                return self.of(left) | self.of(right)
            case ast.UnaryOp(operand=operand):
                return self.of(operand)
            case ast.Compare(left=left, comparators=[right]):
                return self.of(left) | self.of(right)
            case ast.Attribute(value=value, attr="T"):
                return _swap_axes(self.of(value))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=self.tl), attr="trans"),
                args=[value],
                keywords=[],
            ):
                return _swap_axes(self.of(value))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=self.tl), attr="dot"),
                args=[left, right, *rest],
            ):
                return self._product(node, left, right, rest)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=self.tl), attr=name), args=args) if (
                name in ELEMENTWISE
            ):
                return NONE.union(*map(self.of, args), *(self.of(k.value) for k in node.keywords))
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=args):
                for one in args:
                    self._unseen(one)
                return self.of(value)
        self._unseen_below(node)
        return NONE

    def _product(
        self, node: ast.Call, left: ast.expr, right: ast.expr, rest: list[ast.expr]
    ) -> LaneSet:
        """Row by row of the left, column by column of the right; what is summed over must be the
        same."""
        rows, columns = self.of(left), self.of(right)
        if any(axis == 1 for axis, _ in rows) or any(axis == 0 for axis, _ in columns):
            raise _Escapes(_describe_node(node))
        sums = [*rest[:1], *(k.value for k in node.keywords if k.arg == "acc")]
        return NONE.union(rows, columns, *map(self.of, sums))

    def _unseen_below(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._unseen(child)

    def _unseen(self, node: ast.AST) -> None:
        """Nothing of it has such lanes."""
        if any(self.names.get(name) for name in names_in(node)):
            raise _Escapes(_describe_node(node))
        if any(self.changed.get(n) for n in ast.walk(node) if isinstance(n, ast.Call)):
            raise _Escapes(_describe_node(node))


def _swap_axes(lanes: LaneSet) -> LaneSet:
    return frozenset((1 - axis, bound) for axis, bound in lanes)


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _describe_node(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:80]}`"
