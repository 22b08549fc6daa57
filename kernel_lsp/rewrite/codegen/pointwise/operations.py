"""aten operations that act element by element, as values of the expression IR.

``TABLE`` maps an operation's name to a builder that gets the node and a function from an argument's
schema name to its value. A builder raises Unsupported for a variant that it does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Scalar, Value, apply
from kernel_lsp.rewrite.codegen.core.nodes import (
    FLOATS,
    WHOLE,
    Unsupported,
    argument_nodes,
    argument_of,
    dtype_name,
    op_name,
)
from kernel_lsp.rewrite.codegen.core.ops import COMPARISONS, POWERS
from kernel_lsp.rewrite.graph import argument, drops

aten = torch.ops.aten

PointwiseInput: TypeAlias = Value | Scalar | None
GetOperand: TypeAlias = Callable[[str], PointwiseInput]
Builder: TypeAlias = Callable[[fx.Node, GetOperand], PointwiseInput]


def as_float(arg: PointwiseInput) -> Any:
    """Whole numbers and booleans take part in float arithmetic as float32."""
    if isinstance(arg, Value) and arg.dtype in ("bool", "int64", "int32"):
        return apply("to_float", arg)
    return arg


def _unary(name: str) -> Builder:
    return lambda node, get: apply(name, as_float(get("self")))


def _scale_argument(get: GetOperand, name: str) -> PointwiseInput:
    """``alpha * other`` of add and sub."""
    alpha = get("alpha")
    value = as_float(get(name))
    if alpha in (None, 1):
        return value
    return value * alpha if not isinstance(value, Value) else apply("mul", value, alpha)


def _add(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("add", as_float(get("self")), _scale_argument(get, "other"))


def _sub(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("sub", as_float(get("self")), _scale_argument(get, "other"))


def _rsub(node: fx.Node, get: GetOperand) -> PointwiseInput:
    if get("alpha") not in (None, 1):
        raise Unsupported("rsub with alpha")
    return apply("sub", as_float(get("other")), as_float(get("self")))


def _mul(node: fx.Node, get: GetOperand) -> PointwiseInput:
    left, right = get("self"), get("other")
    if _dtype(node) == torch.bool:
        return apply("and", left, right, dtype="bool")
    return apply("mul", as_float(left), as_float(right))


def _div(node: fx.Node, get: GetOperand) -> PointwiseInput:
    if argument(node, "rounding_mode") is not None:
        raise Unsupported("division with rounding")
    left, right = as_float(get("self")), as_float(get("other"))
    if isinstance(right, (int, float)) and right and math.frexp(right)[0] in (0.5, -0.5):
        return apply("mul", left, 1.0 / right)  # a power of two: exact
    return apply("div", left, right)


def _pow(node: fx.Node, get: GetOperand) -> PointwiseInput:
    exponent = get("exponent")
    if isinstance(exponent, Value) or exponent is None or float(exponent) not in POWERS:
        raise Unsupported("pow with this exponent")
    return apply("pow", as_float(get("self")), float(exponent))


def _compare(name: str) -> Builder:
    def build(node: fx.Node, get: GetOperand) -> PointwiseInput:
        limit = get("other")
        if isinstance(limit, (int, float)):
            limit = _as_stored(node.args[0].meta["val"].dtype, limit)
        return apply(name, get("self"), limit, dtype="bool")

    return build


def _as_stored(dtype: torch.dtype, number: float) -> float:
    """The number that torch compares with: 0.1 is 0.1001 beside a bfloat16 tensor."""
    if dtype in WHOLE and abs(number) >= 2**24:
        raise Unsupported("whole numbers that float32 cannot tell apart")
    if not dtype.is_floating_point or not math.isfinite(number):
        return number
    return float(torch.tensor(float(number), dtype=dtype, device="cpu").item())


def _logical(name: str) -> Builder:
    def build(node: fx.Node, get: GetOperand) -> PointwiseInput:
        args = [get("self"), get("other")]
        return apply(name, *[_truth(arg) for arg in args], dtype="bool")

    return build


def _truth(arg: PointwiseInput) -> PointwiseInput:
    if isinstance(arg, Value) and arg.dtype != "bool":
        return apply("to_bool", arg, dtype="bool")
    return arg


def _not(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("not", get("self"), dtype="bool")


def _where(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("where", _truth(get("condition")), as_float(get("self")), as_float(get("other")))


def _masked_fill(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply(
        "where", _truth(get("mask")), as_float(get("value")), as_float(get("self")), hint="masked"
    )


def _clamp(node: fx.Node, get: GetOperand) -> PointwiseInput:
    low, high, x = get("min"), get("max"), as_float(get("self"))
    if isinstance(low, Value) or isinstance(high, Value):
        if low is not None:
            x = apply("maximum", x, as_float(low))
        return x if high is None else apply("minimum", x, as_float(high))
    return apply("clamp", x, low, high)


def _clamp_min(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("clamp", as_float(get("self")), get("min"), None)


def _clamp_max(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("clamp", as_float(get("self")), None, get("max"))


def _hardtanh(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("hardtanh", as_float(get("self")), get("min_val"), get("max_val"), hint="clamp")


def _gelu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply(
        "gelu_tanh" if argument(node, "approximate") == "tanh" else "gelu",
        as_float(get("self")),
        hint="gelu",
    )


def _mish(node: fx.Node, get: GetOperand) -> PointwiseInput:
    x = as_float(get("self"))
    return apply("mish", x, apply("mish_exp", x, hint="exp"))


def _softplus(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply(
        "softplus",
        as_float(get("self")),
        float(_number(get("beta"))),
        float(_number(get("threshold"))),
    )


def _elu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    factors = [float(_number(get(name))) for name in ("alpha", "scale", "input_scale")]
    return apply("elu", as_float(get("self")), *factors)


def _selu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply(
        "elu", as_float(get("self")), 1.6732632423543772, 1.0507009873554805, 1.0, hint="selu"
    )


def _celu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    alpha = float(_number(get("alpha")))
    return apply("elu", as_float(get("self")), alpha, 1.0, 1.0 / alpha, hint="celu")


def _leaky_relu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("leaky_relu", as_float(get("self")), float(_number(get("negative_slope"))))


def prelu(node: fx.Node, get: GetOperand) -> Value:
    """x where it is positive, else x times the weight: one number, or one of each channel."""
    x = as_float(get("self"))
    positive = apply("gt", x, 0.0, dtype="bool", hint="positive")
    return apply(
        "where", positive, x, apply("mul", as_float(get("weight")), x, hint="sloped"), hint="prelu"
    )


def _prelu(node: fx.Node, get: GetOperand) -> PointwiseInput:
    """With a single slope; several belong to channels (channelwise.py)."""
    slope = argument(node, "weight")
    if slope.meta["val"].numel() != 1:
        raise Unsupported("a slope for each channel")
    return prelu(node, get)


def _threshold(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return apply("threshold", as_float(get("self")), get("threshold"), get("value"))


def _addc_builder(name: str) -> Builder:
    """addcmul and addcdiv: ``self + value * (tensor1 ? tensor2)``."""

    def build(node: fx.Node, get: GetOperand) -> PointwiseInput:
        made = apply(name, as_float(get("tensor1")), as_float(get("tensor2")))
        factor = _number(get("value"))
        made = made if factor == 1 else apply("mul", made, float(factor))
        return apply("add", as_float(get("self")), made)

    return build


def _lerp(node: fx.Node, get: GetOperand) -> PointwiseInput:
    """From whichever end is nearer, as torch does."""
    start, end, weight = as_float(get("self")), as_float(get("end")), _number(get("weight"))
    way = apply("sub", end, start, hint="way")
    if abs(weight) < 0.5:
        return apply("add", start, apply("mul", way, float(weight)))
    return apply("sub", end, apply("mul", way, 1.0 - weight))


def _hardshrink(node: fx.Node, get: GetOperand) -> PointwiseInput:
    x, limit = as_float(get("self")), float(_number(get("lambd")))
    return apply("where", apply("le", apply("abs", x), limit, dtype="bool", hint="small"), 0.0, x)


def _binary_float(name: str) -> Builder:
    return lambda node, get: apply(name, as_float(get("self")), as_float(get("other")))


def _cast(node: fx.Node, get: GetOperand) -> PointwiseInput:
    value, dtype = get("self"), _dtype(node)
    if not isinstance(value, Value):
        raise Unsupported("cast of a number")
    if dtype in (torch.float16, torch.bfloat16) and value.dtype not in (dtype_name(dtype), "bool"):
        value = as_float(value)
        return apply(f"round_to_{dtype_name(dtype)}", value, hint="rounded")
    if dtype in FLOATS:
        return as_float(value)
    if dtype == torch.bool:
        return _truth(value)
    raise Unsupported(f"cast to {dtype}")


def _same(node: fx.Node, get: GetOperand) -> PointwiseInput:
    return get("self")


def _dropout(node: fx.Node, get: GetOperand) -> PointwiseInput:
    """What draws is of kernels that can: dropping.py says which nodes."""
    if not drops(node):
        return get("input")
    share = 1.0 - _number(argument(node, "p"))
    fours = 4 // _dtype(node).itemsize  # torch's threads move 16 bytes at a time
    kept = Value(op="kept", args=(share, fours), hint="kept")
    return apply("mul", apply("mul", as_float(get("input")), kept), 1.0 / share, hint="dropped")


def _number(arg: PointwiseInput) -> float:
    if isinstance(arg, Value) or arg is None:
        raise Unsupported("a tensor where a number is expected")
    return float(arg)


def _dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


IDENTITY = (
    "dropout",
    "contiguous",
    "clone",
    "alias",
    "detach",
    "expand",
    "expand_as",
    "broadcast_part",
)
"""Operations that return their first argument, perhaps broadcast; never worth a kernel
themselves."""

TABLE: dict[str, Builder] = {
    **{
        name: _unary(name)
        for name in (
            "neg", "reciprocal", "square", "abs", "exp", "exp2", "log", "log2", "log1p", "expm1",
            "sqrt",
            "rsqrt", "sin", "cos", "erf", "floor", "ceil", "tanh", "cosh", "sinh", "sigmoid",
            "relu", "silu",
            "log_sigmoid", "hardsigmoid", "hardswish", "sign",
        )
    },
    **{name: _compare(name) for name in COMPARISONS},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": _logical(name) for name in ("and", "or", "xor")},
    **{name: _same for name in IDENTITY if name != "dropout"},
    "dropout": _dropout,
    "add": _add, "sub": _sub, "rsub": _rsub, "mul": _mul, "div": _div, "pow": _pow,
    "logical_not": _not, "bitwise_not": _not,
    "isnan": lambda node, get: apply("isnan", get("self"), dtype="bool"),
    "where": _where, "masked_fill": _masked_fill,
    "maximum": _binary_float("maximum"), "minimum": _binary_float("minimum"),
    "xlogy": _binary_float("xlogy"),
    "clamp": _clamp, "clamp_min": _clamp_min, "clamp_max": _clamp_max, "hardtanh": _hardtanh,
    "relu6": lambda node, get: apply("hardtanh", as_float(get("self")), 0.0, 6.0, hint="relu6"),
    "gelu": _gelu, "mish": _mish, "softplus": _softplus, "elu": _elu, "selu": _selu, "celu": _celu,
    "leaky_relu": _leaky_relu, "prelu": _prelu, "threshold": _threshold,
    "addcmul": _addc_builder("mul"), "addcdiv": _addc_builder("div"), "lerp": _lerp,
    "hardshrink": _hardshrink,
    "to": _cast, "_to_copy": _cast, "type_as": _cast,
}  # fmt: skip


LOGIC = ("and", "or", "xor", "not")
TO_BOOL = frozenset(
    [
        *COMPARISONS,
        *IDENTITY,
        *(f"{kind}_{name}" for kind in ("logical", "bitwise") for name in LOGIC),
        *("mul", "isnan", "to", "_to_copy", "type_as"),
    ]
)
"""Operations whose builder yields a truth value where torch does."""


def is_pointwise(node: Any) -> bool:
    """True when the node acts element by element in a way that can be generated."""
    name, value = op_name(node), getattr(node, "meta", {}).get("val")
    if (
        name not in TABLE
        or not isinstance(value, torch.Tensor)
        or value.dtype not in (*FLOATS, torch.bool)
    ):
        return False
    if value.dtype == torch.bool and name not in TO_BOOL:
        return False  # True + True is True: float arithmetic would make it 2
    if name == "dropout" and drops(node):
        return False
    tensors = [arg.meta["val"] for _, arg in argument_nodes(node)]
    if not tensors or any(not isinstance(t, torch.Tensor) or not _readable(t) for t in tensors):
        return False
    if (
        name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
        and tensors[0].dtype != torch.bool
    ):
        return False
    return _buildable(node)


def _readable(value: torch.Tensor) -> bool:
    return value.dtype in (*FLOATS, *WHOLE, torch.bool)


def value_of(node: fx.Node, read: Callable[[fx.Node], Any]) -> Any:
    """The node's value; ``read`` yields that of a node among its arguments."""

    def get(name: str) -> Any:
        arg = argument_of(node, name)
        return read(arg) if isinstance(arg, fx.Node) else arg

    return TABLE[op_name(node)](node, get)


def _buildable(node: fx.Node) -> bool:
    try:
        return build_expression(node) is not None
    except (Unsupported, KeyError):
        return False


def build_expression(node: fx.Node) -> PointwiseInput:
    """Try the builder on stand-ins for the arguments. Raises Unsupported."""

    def get(name: str) -> PointwiseInput:
        arg = argument_of(node, name)
        if isinstance(arg, fx.Node):
            return Value(op="stand-in", dtype=dtype_name(arg.meta["val"].dtype))
        return arg if isinstance(arg, (int, float, bool)) or arg is None else 0

    return TABLE[op_name(node)](node, get)
