"""KL203: offsets computed in 32 bits that can pass 2^31 elements.

``tl.program_id`` is int32, and so is every integer argument below 2^31. One size times a program
index is left alone (nearly every kernel has it). Reported: two sizes times a program index, and
a product left in 32 bits where the same kernel took care to widen another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.rules.base import Hit, Rule, Site, hit
from kernel_lsp.analysis.rules.tritonops import language_name, runtime_parameters
from kernel_lsp.analysis.source import FunctionNode, children, module_level, walk
from kernel_lsp.records import TargetKind


@dataclass(frozen=True, slots=True)
class _Integer:
    from_program: bool = False
    num_sizes: int = 0
    """Runtime parameters multiplied together."""
    is_wide: bool = False


_PLAIN = _Integer()


class _Kernel:
    def __init__(self, site: Site, function: FunctionNode) -> None:
        self.file = site.file
        self.function = function
        self.known = {name: _Integer(num_sizes=1) for name in runtime_parameters(site, function)}
        self.products: list[tuple[ast.BinOp, _Integer]] = []
        self.widened = False

    def run(self) -> None:
        for statement in module_level(self.function.body):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return):
                value = self._value(statement.value) if statement.value else _PLAIN
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.known[target.id] = value

    def _value(self, node: ast.AST) -> _Integer:
        match node:
            case ast.Name(id=name):
                return self.known.get(name, _PLAIN)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self._product(node, self._value(left), self._value(right))
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                a, b = self._value(left), self._value(right)
                return _Integer(
                    a.from_program or b.from_program, max(a.num_sizes, b.num_sizes), a.is_wide or b.is_wide
                )
            case ast.BinOp(left=left, op=ast.Mod() | ast.FloorDiv(), right=right):
                a = self._value(left)
                self._value(right)
                return _Integer(a.from_program, 0, a.is_wide)
            case ast.Call():
                return self._call(node)
        for child in children(node):
            self._value(child)
        return _PLAIN

    def _product(self, node: ast.BinOp, a: _Integer, b: _Integer) -> _Integer:
        result = _Integer(a.from_program or b.from_program, a.num_sizes + b.num_sizes, a.is_wide or b.is_wide)
        if result.from_program and result.num_sizes:
            self.products.append((node, result))
            self.widened |= result.is_wide
        return result

    def _call(self, node: ast.Call) -> _Integer:
        for value in (*node.args, *(k.value for k in node.keywords)):
            self._value(value)
        if language_name(self.file, node.func) == "program_id":
            return _Integer(from_program=True)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            inner = self._value(node.func.value)
            wide = any(language_name(self.file, a) in ("int64", "uint64") for a in node.args)
            return _Integer(inner.from_program, inner.num_sizes, inner.is_wide or wide)
        return _PLAIN


def _check(site: Site) -> Iterator[Hit]:
    for function in site.functions[:1]:
        kernel = _Kernel(site, function)
        kernel.run()
        narrow = [(node, value) for node, value in kernel.products if not value.is_wide]
        inner = {id(n) for node, _ in narrow for n in walk(node) if n is not node}
        for node, value in narrow:
            if id(node) not in inner and (value.num_sizes >= 2 or kernel.widened):
                yield hit(
                    node,
                    "this offset is computed in 32 bits and wraps beyond 2^31 elements; "
                    "widen the program index first: tl.program_id(0).to(tl.int64)",
                    sizes=value.num_sizes,
                )


KL203 = Rule(
    id="KL203",
    name="int32-offset-overflow",
    summary="offset arithmetic in 32 bits that can pass 2^31",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
