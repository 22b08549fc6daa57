"""KL236: a formula that overflows to infinity or NaN although its result is small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.exponents import is_limited
from kernel_lsp.records import TargetKind

_EXP = ("exp", "math.exp")
_LOG = ("log", "math.log")


def _check(site: RuleSite) -> Iterator[Hit]:
    if "exp" not in site.called_names:
        return
    for kernel in site.kernels:
        if any(name in ("where", "minimum", "clamp", "abs") for _, name in kernel.calls):
            continue  # a choice or a limit may keep the large values out
        for node in kernel.nodes:
            if isinstance(node, ast.Call) and _is_softplus(kernel, node):
                yield hit(
                    node,
                    "log(1 + exp(x)) is infinite for x above 88, where it should be x: "
                    "tl.maximum(x, 0) + tl.log(1 + tl.exp(-tl.abs(x)))",
                )
            elif isinstance(node, ast.BinOp) and _is_tanh(kernel, node):
                yield hit(
                    node,
                    "infinity divided by infinity is NaN for arguments above 44: 1 - 2 / (1 + "
                    "tl.exp(2 * "
                    "x)), or "
                    "libdevice.tanh",
                )


def _is_softplus(kernel: KernelFacts, node: ast.Call) -> bool:
    if kernel.called(node) not in _LOG or not node.args:
        return False
    return (power := _plus_one(kernel, node.args[0])) is not None and not is_limited(
        kernel, power.args[0]
    )


def _is_tanh(kernel: KernelFacts, node: ast.BinOp) -> bool:
    """``(e - 1) / (e + 1)`` and ``(1 - e) / (1 + e)`` with e = exp(x)."""
    if not isinstance(node.op, ast.Div):
        return False
    above = kernel.resolve(node.left)
    power = _plus_one(kernel, node.right)
    if power is None or not isinstance(above, ast.BinOp) or not isinstance(above.op, ast.Sub):
        return False
    parts = [ast.dump(kernel.resolve(p)) for p in (above.left, above.right)]
    return ast.dump(power) in parts and not is_limited(kernel, power.args[0])


def _plus_one(kernel: KernelFacts, node: ast.expr) -> ast.Call | None:
    """``exp(x)`` of ``1 + exp(x)``."""
    node = kernel.resolve(node)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        power = kernel.resolve(other)
        is_one = isinstance(one, ast.Constant) and one.value == 1
        if is_one and isinstance(power, ast.Call) and kernel.called(power) in _EXP and power.args:
            return power
    return None


KL236 = Rule(
    id="KL236",
    name="overflowing-exp",
    summary="log(1 + exp(x)) or (e - 1) / (e + 1), which overflow",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
