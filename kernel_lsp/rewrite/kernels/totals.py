"""What atomic operations put together of one number for each block: the same however many blocks
there are?

`is_visible(call, part, reductions)` says of an atomic operation whether its result tells how an axis
was cut: an addition of anything but sums over the block (a largest value, a count of blocks, a
square root of a sum), a maximum of anything but the largest of each block. Standard library only.
Not covered: locks and exchanges, and what is rounded before it is put together."""

from __future__ import annotations

import ast

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.source import assignments, operand

SAME = {
    "atomic_add": ("sum", "dot"),
    "atomic_max": ("max",),
    "atomic_min": ("min",),
    "atomic_or": ("reduce_or",),
    "atomic_xor": ("xor_sum",),
}
"""Atomic operation -> reductions over lanes that it goes on with from block to block."""
ZEROS = ("zeros", "zeros_like")


def is_visible(call: ast.Call, part: FunctionNode | ast.For, reductions: set[int]) -> bool:
    """Whether the result of an atomic operation tells how an axis was cut into blocks.
    ``reductions``: ids of calls that put lanes of a block together; ``part``: where blocks are gone
    through."""
    assert isinstance(call.func, ast.Attribute)
    value = operand(call, 1, "val")
    same = SAME.get(call.func.attr)
    if value is None or same is None:
        return False
    return not _Total(part, reductions, same).holds(value)


class _Total:
    def __init__(
        self, part: FunctionNode | ast.For, reductions: set[int], same: tuple[str, ...]
    ) -> None:
        self.part, self.same = part, same
        self.reductions = reductions & {id(n) for n in ast.walk(part)}

    def holds(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Of a value that comes from no reduction: yes, for it stands for a lane of its own."""
        if not self._is_reduced(node, frozenset()):
            return True
        match node:
            case ast.Name(id=name):
                values = assignments(self.part).get(name, ())
                return name in seen or all(
                    self._may_start(v) or self.holds(v, seen | {name}) for v in values
                )
            case ast.Call(func=ast.Attribute(attr=name)) if id(node) in self.reductions:
                return name in self.same
            case ast.Call(func=ast.Attribute(value=value, attr="to")) | ast.Subscript(value=value):
                return self.holds(value, seen)
        return "sum" in self.same and self._is_linear(node, seen)

    def _is_linear(self, node: ast.expr, seen: frozenset[str]) -> bool:
        """A sum that is added to, or multiplied with what comes from no reduction."""
        match node:
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                reduced = [one for one in (left, right) if self._is_reduced(one, frozenset())]
                return len(reduced) == 1 and self.holds(reduced[0], seen)
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                return not self._is_reduced(right, frozenset()) and self.holds(left, seen)
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                return all(self._adds(side, seen) for side in (left, right))
            case ast.UnaryOp(op=ast.USub(), operand=value):
                return self.holds(value, seen)
        return False

    def _adds(self, node: ast.expr, seen: frozenset[str]) -> bool:
        """A part of a sum: the sum itself, as a loop goes on with it, or one that is reduced
        too."""
        if isinstance(node, ast.Name) and node.id in seen:
            return True
        return self._is_reduced(node, frozenset()) and self.holds(node, seen)

    def _is_reduced(self, node: ast.AST, seen: frozenset[str]) -> bool:
        for one in ast.walk(node):
            if id(one) in self.reductions:
                return True
            if isinstance(one, ast.Name) and one.id not in seen:
                values = assignments(self.part).get(one.id, ())
                if any(self._is_reduced(value, seen | {one.id}) for value in values):
                    return True
        return False

    def _may_start(self, node: ast.expr) -> bool:
        """Nothing yet: what a sum begins with."""
        match node:
            case ast.Constant(value=0):
                return "sum" in self.same
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in ZEROS and "sum" in self.same
        return False
