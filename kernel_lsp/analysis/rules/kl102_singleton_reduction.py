"""KL102: a reduction or softmax over a dimension that has size 1."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit, self_attribute
from kernel_lsp.analysis.rules.flow import LocalFacts
from kernel_lsp.analysis.rules.torchops import (
    POINTWISE,
    POINTWISE_MODULES,
    REDUCTIONS,
    SHAPE_KEEPING,
    dimension,
    is_number,
    keeps_dimension,
    operation,
)
from kernel_lsp.analysis.source import children, integer
from kernel_lsp.records import TargetKind

_SingletonDims: TypeAlias = frozenset[int]
"""Dimensions of size 1, numbered as the source numbers them: 1 and -1 are not compared."""

_SAME_SHAPE_MODULES = POINTWISE_MODULES | {"torch.nn.Dropout", "torch.nn.Identity"}


class _SingletonReductionFinder:
    def __init__(self, site: RuleSite) -> None:
        self.site = site
        self.hits: dict[ast.Call, int] = {}

    def evaluate(self, node: ast.expr, env: dict[str, _SingletonDims]) -> _SingletonDims | None:
        """The dimensions of size 1 of an expression, None where its shape is not followed. What it
        calls on the way is looked at: a reduction over one of them is a hit."""
        match node:
            case ast.Name(id=name):
                return env.get(name)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.evaluate(left, env), self.evaluate(right, env)
                return None if isinstance(op, ast.MatMult) else _broadcast(left, a, right, b)
            case ast.UnaryOp(operand=operand):
                return self.evaluate(operand, env)
            case ast.Call():
                return self._call(node, env)
            case ast.Attribute(value=ast.Call() as call, attr="values" | "indices"):
                return self.evaluate(call, env)
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=0 | 1)):
                dims = self.evaluate(call, env)
                called = operation(self.site, call)
                return dims if called and called[0] in ("max", "min") else None
        for child in children(node):
            if isinstance(child, ast.expr):
                self.evaluate(child, env)
        return None

    def _call(self, node: ast.Call, env: dict[str, _SingletonDims]) -> _SingletonDims | None:
        called = None if self.site.submodule_class(node) else operation(self.site, node)
        if called is None:
            known = [self.evaluate(a, env) for a in (*node.args, *(k.value for k in node.keywords))]
            return self._submodule(node, known[0] if known else None)
        name, tensor, rest = called
        dims = self.evaluate(tensor, env)
        others = [self.evaluate(r, env) for r in rest]
        if name in POINTWISE:
            return dims if all(is_number(r) for r in rest) and len(others) == len(rest) else None
        if name == "unsqueeze":
            new = integer(rest[0]) if rest else None
            return None if new is None else frozenset({new})
        return self._reduction(node, dims, rest, name) if name in REDUCTIONS else None

    def _reduction(
        self, node: ast.Call, dims: _SingletonDims | None, rest: list[ast.expr], name: str
    ) -> _SingletonDims | None:
        dim = dimension(node, rest)
        if dim is None:
            return None
        if dims and dim in dims:
            self.hits[node] = dim
        if name in SHAPE_KEEPING:
            return dims
        return (dims or frozenset()) | {dim} if keeps_dimension(node, rest) else None

    def _submodule(self, node: ast.Call, dims: _SingletonDims | None) -> _SingletonDims | None:
        made = self.site.submodule_class(node)
        if made in _SAME_SHAPE_MODULES:
            return dims
        name = self_attribute(node.func)
        is_score = (
            name is not None
            and name in self.site.submodules
            and _has_one_output(*self.site.submodules[name])
        )
        return frozenset({-1}) if is_score else None


def _broadcast(
    left: ast.expr, a: _SingletonDims | None, right: ast.expr, b: _SingletonDims | None
) -> _SingletonDims | None:
    """A tensor of unknown shape may widen the dimension; a number cannot."""
    if is_number(right):
        return a
    if is_number(left):
        return b
    return a & b if a and b else None


def _has_one_output(constructor: ast.Call, made: str) -> bool:
    return made == "torch.nn.Linear" and integer(argument(constructor, 1, "out_features")) == 1


def _makes_singletons(site: RuleSite) -> bool:
    """A quick look for anything that could; most modules have nothing."""
    if "unsqueeze" in site.called_names or any(
        _has_one_output(c, made) for c, made in site.submodules.values()
    ):
        return True
    return any(
        any(k.arg == "keepdim" for k in call.keywords)
        or (len(call.args) > 1 and _is_true(call.args[-1]))
        for call, _ in site.calls
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.called_names & REDUCTIONS or not _makes_singletons(site):
        return
    for function in site.functions:
        finder = _SingletonReductionFinder(site)
        LocalFacts(finder.evaluate).run(function)
        for call, dim in finder.hits.items():
            name = (
                call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
            )
            yield hit(
                call,
                f"{name} over dimension {dim}, which has size 1 here: the result needs no "
                f"reduction",
                operation=name,
                dim=dim,
            )


KL102 = Rule(
    id="KL102",
    name="singleton-reduction",
    summary="a reduction or softmax over a dimension that an earlier step made 1",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
