"""Names of PyTorch operations, sorted by what the rules need to know about them.

Facts about torch 2.x; an operation that is missing here only makes a rule silent.
"""

from __future__ import annotations

import ast

from kernel_lsp.analysis.rules.base import RuleSite
from kernel_lsp.analysis.source import integer, words

POINTWISE = words(
    """
    abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow reciprocal sin cos tan asin
    acos atan sinh cosh tanh sigmoid logsigmoid logit erf erfc relu relu6 leaky_relu elu selu celu
    gelu silu swish mish softplus softsign hardtanh hardswish hardsigmoid hardshrink softshrink
    tanhshrink threshold clamp clip clamp_min clamp_max sign floor ceil round trunc frac add sub mul
    div true_divide maximum minimum fmod remainder where masked_fill lerp addcmul addcdiv nan_to_num
    """
)
POINTWISE_MODULES = frozenset(
    f"torch.nn.{name}"
    for name in words(
        """
    ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus Softsign Hardtanh Hardswish
    Hardsigmoid Hardshrink Softshrink Tanhshrink Threshold Tanh Sigmoid LogSigmoid
    """
    )
)
# Keep a dimension of size 1 when asked to; the result of every one of them over size 1 is trivial.
REDUCTIONS = words(
    """
    sum mean amax amin max min prod logsumexp std var norm softmax log_softmax argmax argmin all any
    cumsum cumprod nansum nanmean
    """
)
SHAPE_KEEPING = words("softmax log_softmax cumsum cumprod")
_SPACES = ("torch", "torch.nn.functional", "torch.special")


def operation(site: RuleSite, call: ast.Call) -> tuple[str, ast.expr, list[ast.expr]] | None:
    """(name, tensor, other positional arguments) of ``torch.f(x, ..)``, ``F.f(x, ..)`` or
    ``x.f(..)``."""
    if not isinstance(call.func, ast.Attribute):
        dotted = site.file.dotted(call.func)  # from torch import relu
    else:
        dotted = site.file.dotted(call.func)
        if dotted is None and not is_self(call.func.value):
            return call.func.attr, call.func.value, call.args
    if dotted is None or not call.args:
        return None
    space, _, name = dotted.rpartition(".")
    return (name, call.args[0], call.args[1:]) if space in _SPACES else None


def is_self(node: ast.expr) -> bool:
    """Whether the expression is the name ``self``: ``self.relu(x)`` calls a submodule and no tensor
    method."""
    return isinstance(node, ast.Name) and node.id == "self"


def dimension(call: ast.Call, rest: list[ast.expr]) -> int | None:
    """The constant ``dim`` of a reduction; None when absent, a tuple or computed."""
    given = next((k.value for k in call.keywords if k.arg in ("dim", "axis")), None)
    return integer(given if given is not None else (rest[0] if rest else None))


def keeps_dimension(call: ast.Call, rest: list[ast.expr]) -> bool:
    """Whether a reduction is called with ``keepdim=True``, by name or as the second of its ``rest``
    of arguments."""
    given = next((k.value for k in call.keywords if k.arg == "keepdim"), None)
    if given is None and len(rest) > 1:
        given = rest[1]
    return isinstance(given, ast.Constant) and given.value is True


def is_matmul(site: RuleSite, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Both operands of ``a @ b``, ``torch.matmul(a, b)``, ``a.mm(b)`` and their relatives."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call):
        called = operation(site, node)
        if called and called[0] in ("matmul", "mm", "bmm", "mv") and called[2]:
            return called[1], called[2][0]
    return None


def is_number(node: ast.expr) -> bool:
    """A literal number, possibly negative."""
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
