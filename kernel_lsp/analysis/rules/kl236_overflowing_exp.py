"""KL236: a formula that overflows to infinity or NaN although its result is small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, Site, hit
from kernel_lsp.records import TargetKind

_EXP = ("exp", "math.exp")
_LOG = ("log", "math.log")


def _check(site: Site) -> Iterator[Hit]:
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
                    "infinity divided by infinity is NaN for arguments above 44: 1 - 2 / (1 + tl.exp(2 * "
                    "x)), or "
                    "libdevice.tanh",
                )


def _is_softplus(kernel: KernelFacts, node: ast.Call) -> bool:
    if kernel.called(node) not in _LOG or not node.args:
        return False
    return (power := _plus_one(kernel, node.args[0])) is not None and _can_overflow(kernel, power)


def _is_tanh(kernel: KernelFacts, node: ast.BinOp) -> bool:
    """``(e - 1) / (e + 1)`` and ``(1 - e) / (1 + e)`` with e = exp(x)."""
    if not isinstance(node.op, ast.Div):
        return False
    above = kernel.resolve(node.left)
    power = _plus_one(kernel, node.right)
    if power is None or not isinstance(above, ast.BinOp) or not isinstance(above.op, ast.Sub):
        return False
    parts = [ast.dump(kernel.resolve(p)) for p in (above.left, above.right)]
    return ast.dump(power) in parts and _can_overflow(kernel, power)


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


def _can_overflow(kernel: KernelFacts, power: ast.Call) -> bool:
    """Nothing is negated or subtracted in the exponent, and all of it can be followed."""
    return not any(_turns(kernel, part) for part in kernel.formula(power.args[0]))


def _turns(kernel: KernelFacts, part: ast.AST) -> bool:
    match part:
        case ast.BinOp(op=ast.Sub()) | ast.UnaryOp(op=ast.USub()):
            return True
        case ast.Call(func=ast.Attribute(attr="to")):
            return False
        case ast.Call():
            return kernel.called(part) != "load"
        case ast.Name(id=name):
            return name in kernel.bindings
    return False


KL236 = Rule(
    id="KL236",
    name="overflowing-exp",
    summary="log(1 + exp(x)) or (e - 1) / (e + 1), which overflow",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
