"""A kernel with one launch of it: what it is passed and accesses, in terms of the launcher's
tensors.

So that two kernels can be compared by text: what stands for the same expression of the launcher's
arguments and tensors has the same words in both, and what cannot be had is unlike anything.
Standard library only. Not covered: launches with ``*`` or ``**``, addresses that come from a load.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels import launchers, places
from kernel_lsp.rewrite.kernels.source import find_calls, only_value

LONGEST = 4000
"""Characters of an address with all names put in; beyond it is not compared."""
MAX_NAMES = 200
"""Put in for one address."""


@dataclass(slots=True)
class Side:
    """A kernel with the call that launches it."""

    kernel: FunctionNode
    call: ast.Call
    launcher: FunctionNode
    passed: dict[str, ast.expr]

    def passed_text(self, parameter: str) -> str:
        """What is passed, in terms of the launcher's own arguments and tensors."""
        given = self.passed.get(parameter)
        return "?" if given is None else ast.unparse(launchers.settle_names(self.launcher, given))

    def address(self, node: ast.expr | None) -> str:
        """An expression of the kernel with all names put in, sums in one order; where that is
        impossible it is unlike any other."""
        if node is None:
            return "None"
        text = " + ".join(sorted(_terms(_ExpandedNames(self).visit(copy.deepcopy(node)))))
        return text if "?" not in text and len(text) < LONGEST else f"? {id(node)}"

    def loads(self) -> list[ast.Call]:
        """All loads of the kernel."""
        return find_calls(self.kernel, "load")

    def stores(self) -> list[ast.Call]:
        """All stores of the kernel."""
        return find_calls(self.kernel, "store")

    def tensors(self, calls: list[ast.Call]) -> set[str]:
        """Parameters that these accesses go through: where their addresses begin."""
        return {self._base(c.args[0] if c.args else c) for c in calls}

    def _base(self, node: ast.expr, depth: int = 20) -> str:
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            node = node.left
        if isinstance(node, ast.Name) and node.id in self.passed:
            return node.id
        value = only_value(self.kernel, node.id) if isinstance(node, ast.Name) else None
        return "?" if value is None or not depth else self._base(value, depth - 1)

    def names(self, call: ast.Call) -> set[str]:
        """The launcher's names of tensors that an access may go through."""
        return {self.passed_text(n) for n in self.tensors([call])}

    def parameter(self, tensor: str) -> str:
        """The one that is passed the launcher's tensor of this name."""
        return next(n for n, e in self.passed.items() if isinstance(e, ast.Name) and e.id == tensor)

    def unknown(self) -> bool:
        """An address begins with something else than a parameter."""
        return "?" in self.tensors([*self.loads(), *self.stores()])


def side_of(launcher: FunctionNode, kernel: FunctionNode, call: ast.Call) -> Side | None:
    """The kernel with that launch; None: not all that is passed is to be seen."""
    passed, arguments = places.passed_arguments(kernel, call), kernel.args
    if passed is None or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    if {a.arg for a in arguments.args} - passed.keys():
        return None
    return Side(kernel, call, launcher, passed)


class _ExpandedNames(ast.NodeTransformer):
    """Names of a kernel as what they stand for, down to what the launch passes."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.depth = 0

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """What the launch passes for a parameter, the value of a name that is bound once, "?" where
        neither is known."""
        if node.id in self.side.passed:
            return ast.Name(f"<{self.side.passed_text(node.id)}>", ast.Load())
        stored = [
            n for n in ast.walk(self.side.kernel) if isinstance(n, ast.Name) and n.id == node.id
        ]
        if all(isinstance(n.ctx, ast.Load) for n in stored):
            return node
        value = only_value(self.side.kernel, node.id)
        self.depth += 1
        if value is None or self.depth > MAX_NAMES:
            return ast.Name("?", ast.Load())
        made: ast.AST = self.visit(copy.deepcopy(value))
        return made

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """ "?" for a load; a program_id with its axis by position."""
        if node in find_calls(node, "load"):
            return ast.Name("?", ast.Load())
        axis = [k for k in node.keywords if k.arg == "axis"]
        if node in find_calls(node, "program_id") and axis:
            return ast.Call(node.func, [axis[0].value], [])
        return self.generic_visit(node)


def _terms(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [ast.unparse(node)]
