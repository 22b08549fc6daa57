"""KL203: offsets computed in 32 bits that can pass 2^31 elements.

``tl.program_id`` is int32, and so is every integer argument below 2^31. One size times a program
index is left alone, as nearly every kernel has it. Reported: an address with two sizes times a
program index."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.kernels import KernelFacts, is_constexpr, is_wide, language_name, names_in
from kernel_lsp.analysis.rules.base import Fix, Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import FunctionNode, children, module_level, walk
from kernel_lsp.analysis.targets import parameters
from kernel_lsp.records import TargetKind


@dataclass(frozen=True, slots=True)
class _Integer:
    from_program: bool = False
    num_sizes: int = 0
    """Runtime parameters multiplied together."""
    is_wide: bool = False
    divisor: str = ""
    """What it is a quotient by, as a tree's text."""


_PLAIN = _Integer()


class _OffsetKernel:
    def __init__(self, site: RuleSite, function: FunctionNode) -> None:
        self.file = site.file
        self.function = function
        sizes = [p for p in parameters(function) if not is_constexpr(site.file, p)]
        self.known = {p.arg: _Integer(num_sizes=1, is_wide=is_wide(site.file, p)) for p in sizes}
        self.products: list[tuple[ast.BinOp, _Integer]] = []

    def run(self) -> None:
        """Follow the statements of the kernel in their order, and note offsets that can pass
        2**31."""
        for statement in module_level(self.function.body):
            if isinstance(
                statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return
            ):
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
                if isinstance(node.op, ast.Sub) and b.from_program:
                    return _PLAIN  # what lies between two indices is small
                # A size that is added to an index is no factor: it only moves the index.
                num_sizes = max((v.num_sizes for v in (a, b) if v.from_program), default=0)
                return _Integer(a.from_program or b.from_program, num_sizes, a.is_wide or b.is_wide)
            case ast.BinOp(left=left, op=ast.Mod() | ast.FloorDiv() as op, right=right):
                a = self._value(left)
                self._value(right)
                # A remainder is below its divisor, whatever the number of programs.
                if isinstance(op, ast.Mod):
                    return _Integer(is_wide=a.is_wide)
                return _Integer(a.from_program, 0, a.is_wide, divisor=ast.dump(right))
            case ast.Call():
                return self._call(node)
        for child in children(node):
            self._value(child)
        return _PLAIN

    def _product(self, node: ast.BinOp, a: _Integer, b: _Integer) -> _Integer:
        if a.divisor == ast.dump(node.right) or b.divisor == ast.dump(node.left):
            return _PLAIN  # x // d * d is not larger than x
        result = _Integer(
            a.from_program or b.from_program, a.num_sizes + b.num_sizes, a.is_wide or b.is_wide
        )
        if result.from_program and result.num_sizes:
            self.products.append((node, result))
        return result

    def _call(self, node: ast.Call) -> _Integer:
        name = language_name(self.file, node.func)
        if name == "program_id":
            return _Integer(from_program=True)
        if name is None and not isinstance(node.func, ast.Attribute):
            return _PLAIN  # what other functions make of their arguments is their matter
        for value in (*node.args, *(k.value for k in node.keywords)):
            self._value(value)
        match node.func:
            case ast.Attribute(attr="to", value=operand):
                return self._cast(node, operand)
        return _PLAIN

    def _cast(self, node: ast.Call, operand: ast.expr) -> _Integer:
        names = {language_name(self.file, a) for a in node.args}
        if names & {"int32", "uint32"}:
            return _PLAIN  # a float before, and small enough for its author
        inner = self._value(operand)
        return _Integer(
            inner.from_program, inner.num_sizes, inner.is_wide or bool(names & {"int64", "uint64"})
        )

    def index_of(self, product: ast.expr) -> ast.expr:
        """The factor that comes from the program's number."""
        while isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            product = product.left if self._value(product.left).from_program else product.right
        return product


def _fix(site: RuleSite, facts: KernelFacts, index: ast.expr) -> Fix | None:
    """None where a loop hands on what would get another type: that does not compile."""
    asked = (call.func for call, name in facts.calls if name == "program_id")
    language = next((ast.unparse(f.value) for f in asked if isinstance(f, ast.Attribute)), None)
    if language is None or _is_handed_on(facts, index):
        return None
    text = site.file.text_of(index)
    whole = text if isinstance(index, ast.Name | ast.Call | ast.Attribute) else f"({text})"
    return Fix("Compute this offset in 64 bits", ((index, f"{whole}.to({language}.int64)"),))


def _is_handed_on(facts: KernelFacts, index: ast.expr) -> bool:
    """A name that depends on the index is set in a loop or branch, and elsewhere, too."""
    wide: set[str] = set()
    while True:
        more = {
            name
            for name, bound in facts.bindings.items()
            if any(
                any(n is index for n in walk(b.value)) or names_in(b.value) & wide for b in bound
            )
        }
        if more <= wide:
            break
        wide |= more
    return any(
        (binding.loops or binding.tests)
        and (len(facts.bindings[name]) > 1 or name in facts.parameters)
        for name in wide
        for binding in facts.bindings[name]
    )


def _check(site: RuleSite) -> Iterator[Hit]:
    facts = site.kernels[0]
    kernel = _OffsetKernel(site, facts.function)
    kernel.run()
    # A single number for each program comes from a small tensor.
    tiles = [a.pointer for a in facts.accesses if "lanes" in facts.atoms(a.pointer)]
    addresses = {id(n) for pointer in tiles for n in facts.reached(pointer)}
    for node, value in kernel.products:
        if value.num_sizes >= 2 and not value.is_wide and id(node) in addresses:
            yield hit(
                node,
                "this offset is computed in 32 bits and wraps beyond 2^31 elements; "
                "widen the program index first: tl.program_id(0).to(tl.int64)",
                fix=_fix(site, facts, kernel.index_of(node)),
                sizes=value.num_sizes,
            )
            return  # widening the index mends the others with it


KL203 = Rule(
    id="KL203",
    name="int32-offset-overflow",
    summary="offset arithmetic in 32 bits that can pass 2^31",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
