"""KL209: a variance computed as the mean of squares less the square of the mean."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        if any(isinstance(n, ast.Attribute) and n.attr == "float64" for n in kernel.nodes):
            continue  # twice the digits: what cancels is noise only beyond 10^7 standard deviations
        for node in kernel.nodes:
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Sub)
                and _is_difference(kernel, node)
            ):
                yield hit(
                    node,
                    "E[x^2] - E[x]^2 cancels: the variance is noise, or negative, once the mean "
                    "exceeds "
                    "about "
                    "1000 standard deviations. Sum the squared differences from the mean, or use "
                    "Welford's "
                    "update",
                )


def _is_difference(kernel: KernelFacts, node: ast.BinOp) -> bool:
    """``s2 / n - m * m`` with m = s1 / n."""
    mean = _find_squared(node.right)
    if mean is None:
        return False
    first, second = _quotient(kernel, node.left), _quotient(kernel, mean)
    if first is None or second is None:
        return False
    return ast.dump(first[1]) == ast.dump(second[1]) and ast.dump(first[0]) != ast.dump(second[0])


def _find_squared(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.BinOp(left=ast.Name(id=a) as base, op=ast.Mult(), right=ast.Name(id=b)) if a == b:
            return base
        case ast.BinOp(left=ast.Name() as base, op=ast.Pow(), right=ast.Constant(value=2)):
            return base
    return None


def _quotient(kernel: KernelFacts, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(sum, count) of ``sum / count`` or ``sum * (1 / count)`` written with names."""
    node = kernel.resolve(node)
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and "memory" in kernel.atoms(node.left)
    ):
        return node.left, node.right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        scale = kernel.resolve(node.right)
        if (
            isinstance(scale, ast.BinOp)
            and isinstance(scale.op, ast.Div)
            and "memory" in kernel.atoms(node.left)
        ):
            return node.left, scale.right
    return None


KL209 = Rule(
    id="KL209",
    name="variance-by-difference",
    summary="a variance computed as E[x^2] - E[x]^2",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
