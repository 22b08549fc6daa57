"""KL108: a matrix product whose result is summed at once: most of the product is not needed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit, self_attribute
from kernel_lsp.analysis.rules.flow import LocalFacts
from kernel_lsp.analysis.rules.torchops import dimension, is_matmul, is_number, operation
from kernel_lsp.analysis.source import FunctionNode, children, walk
from kernel_lsp.records import TargetKind

# Dimension 1 is the output of a 2-D product; of a 3-D one it is the sequence, and then
# summing before the product is the same saving.
_DIMENSIONS = (-1, 1)


class _LinearReductionFinder:
    """Facts are True for a product, possibly scaled by a number."""

    def __init__(self, site: RuleSite, read_once: set[str]) -> None:
        self.site = site
        self.read_once = read_once
        self.hits: list[ast.Call] = []

    def evaluate(self, node: ast.expr, env: dict[str, bool]) -> bool | None:
        """True for a product, possibly scaled by a number, that nothing else reads; else None. Sums
        and means of one are hits."""
        if isinstance(node, ast.Name):
            # A product that something else reads too must be computed anyway.
            return env.get(node.id) if node.id in self.read_once else None
        known = {id(child): self.evaluate(child, env) for child in _operands(node)}
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return (
                    (known[id(left)] and _is_scale(right))
                    or (known[id(right)] and _is_scale(left))
                    or None
                )
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return (known[id(left)] and _is_scale(right)) or None
            case ast.Call() if self._reduces(node, known):
                self.hits.append(node)
                return None
        return is_product(self.site, node) or None

    def _reduces(self, node: ast.Call, known: dict[int, bool | None]) -> bool:
        called = operation(self.site, node)
        if called is None or called[0] not in ("sum", "mean") or not known.get(id(called[1])):
            return False
        over_all = not called[2] and not any(k.arg in ("dim", "axis") for k in node.keywords)
        return over_all or dimension(node, called[2]) in _DIMENSIONS


def is_product(site: RuleSite, node: ast.AST) -> bool:
    """A matrix product, as an operator, a call or a linear layer."""
    if not isinstance(node, ast.BinOp | ast.Call):
        return False
    if is_matmul(site, node) is not None:
        return True
    if isinstance(node, ast.BinOp):
        return False
    dotted = site.file.dotted(node.func)
    return dotted == "torch.nn.functional.linear" or site.submodule_class(node) == "torch.nn.Linear"


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """Sub-expressions, with the receiver of a method call in place of the method."""
    for child in children(node):
        is_method = isinstance(node, ast.Call) and child is node.func
        if isinstance(child, ast.keyword) or (is_method and isinstance(child, ast.Attribute)):
            yield child.value
        elif isinstance(child, ast.expr):
            yield child


def _read_once(function: FunctionNode) -> set[str]:
    """Names with at most one reader per assignment, the call's own included."""
    names = [n for n in walk(function) if isinstance(n, ast.Name)]
    reads = Counter(n.id for n in names if isinstance(n.ctx, ast.Load))
    writes = Counter(n.id for n in names if not isinstance(n.ctx, ast.Load))
    writes.update(n.arg for n in walk(function.args) if isinstance(n, ast.arg))
    return {name for name, count in reads.items() if count <= max(writes[name], 1)}


def _is_scale(node: ast.expr) -> bool:
    return is_number(node) or (self_attribute(node) or "").startswith("scal")


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.called_names & {"sum", "mean"} or not any(
        is_product(site, node) for node in site.nodes
    ):
        return
    for function in site.functions:
        finder = _LinearReductionFinder(site, _read_once(function))
        LocalFacts(finder.evaluate).run(function)
        for call in finder.hits:
            yield hit(
                call,
                "this matrix product is summed right away: with the weight summed first it is a "
                "matrix-vector product",
            )


KL108 = Rule(
    id="KL108",
    name="linear-then-reduction",
    summary="a matrix product followed by a sum or mean over its outputs",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
