"""Straight-line data flow: what a rule knows about each local variable, statement by statement.

Sound in one direction only: a fact is dropped whenever a branch, a loop, an unpacking or a
nested function could have changed it. Nothing is carried out of a branch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Generic, TypeVar

from kernel_lsp.analysis.names import bound_names
from kernel_lsp.analysis.source import DefinitionNode, FunctionNode, blocks

F = TypeVar("F")


class LocalFacts(Generic[F]):
    """Local variable -> fact, with the rule's evaluator."""

    def __init__(self, evaluate: Callable[[ast.expr, dict[str, F]], F | None]) -> None:
        self.evaluate = evaluate

    def run(self, function: FunctionNode, known: dict[str, F] | None = None) -> None:
        """Evaluate every expression of the function once, in order."""
        self._block(function.body, dict(known or {}))

    def _block(self, body: list[ast.stmt], env: dict[str, F]) -> None:
        for statement in body:
            self._statement(statement, env)

    def _statement(self, statement: ast.stmt, env: dict[str, F]) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._bind(env, name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._bind(env, name, value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                read = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), target)
                self._bind(
                    env,
                    name,
                    ast.copy_location(ast.BinOp(left=read, op=op, right=value), statement),
                )
            case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
                self.evaluate(value, env)
            case _:
                self._other(statement, env)

    def _bind(self, env: dict[str, F], name: str, value: ast.expr) -> None:
        fact = self.evaluate(value, env)
        if fact is None:
            env.pop(name, None)
        else:
            env[name] = fact

    def _other(self, statement: ast.stmt, env: dict[str, F]) -> None:
        changed = bound_names(statement)
        value = getattr(statement, "value", None) or getattr(statement, "test", None)
        if isinstance(value, ast.expr):
            self.evaluate(value, env)
        if isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            # The body sees what its own earlier rounds left behind.
            env = _without(env, changed)
        if not isinstance(statement, DefinitionNode):
            for block in blocks(statement):
                self._block(block, dict(env))
        for name in changed:
            env.pop(name, None)


def _without(env: dict[str, F], names: set[str]) -> dict[str, F]:
    for name in names:
        env.pop(name, None)
    return env
