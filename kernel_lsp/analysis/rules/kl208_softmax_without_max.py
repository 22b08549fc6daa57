"""KL208: a softmax that overflows because the row's maximum is not subtracted first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.exponents import is_limited
from kernel_lsp.records import TargetKind

_EXPONENTIALS = ("exp", "exp2", "math.exp", "math.exp2")


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        if not any(name in _EXPONENTIALS for _, name in kernel.calls):
            continue
        for node in kernel.nodes:
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Div)
                and _is_softmax(kernel, node)
            ):
                yield hit(
                    node,
                    "this softmax overflows for inputs above 88: subtract the row's maximum "
                    "before tl.exp",
                )


def _is_softmax(kernel: KernelFacts, node: ast.BinOp) -> bool:
    """``e / tl.sum(e)`` with e = exp(x) and nothing subtracted from x."""
    numerator, denominator = kernel.resolve(node.left), kernel.resolve(node.right)
    if (
        not isinstance(denominator, ast.Call)
        or kernel.called(denominator) != "sum"
        or not denominator.args
    ):
        return False
    summed = kernel.resolve(denominator.args[0])
    if ast.dump(summed) != ast.dump(numerator) or kernel.called(numerator) not in _EXPONENTIALS:
        return False
    assert isinstance(numerator, ast.Call)
    return bool(numerator.args) and not is_limited(kernel, numerator.args[0])


KL208 = Rule(
    id="KL208",
    name="softmax-without-max",
    summary="a softmax without the row's maximum subtracted",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
