"""What the rules about overflowing exponentials share: whether something keeps an exponent
small."""

from __future__ import annotations

import ast

from kernel_lsp.analysis.kernels import KernelFacts


def is_limited(kernel: KernelFacts, exponent: ast.expr) -> bool:
    """Whether something is subtracted or negated on the way, the value is limited, or it cannot be
    followed."""
    return any(_limits(kernel, part) for part in kernel.formula(exponent))


def _limits(kernel: KernelFacts, part: ast.AST) -> bool:
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
