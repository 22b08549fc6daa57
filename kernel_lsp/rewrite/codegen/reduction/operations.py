"""Softmax, norms, reductions and losses as values of the expression IR."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import (
    Value,
    apply,
    careful,
    count,
    is_careful,
    part,
    reduce,
)
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.space import POOLS, is_counted
from kernel_lsp.rewrite.codegen.pointwise.operations import as_float, is_pointwise
from kernel_lsp.rewrite.graph import argument

GetArgument = Callable[[str], Any]
MAX_FOLLOWED = 16
"""Operations between a softmax and a sum of it."""


def build(node: fx.Node, get: GetArgument) -> Value:
    """The node's value; ``get(schema name)`` yields its arguments."""
    name = op_name(node)
    builder = BUILDERS.get(name)
    return builder(node, get) if builder is not None else _loss(node, get)


def _stats(node: fx.Node, get: GetArgument) -> tuple[Value, Value]:
    """What is normalized, and its maximum and sum of exponentials.

    Where a sum follows, as in a divergence, each logarithm's error may be random but not the same
    for all: 2**-22 of every exponential put a kl_div of distributions that nearly agree, 5e-6, off
    by 5 percent."""
    x = as_float(get("self"))
    stats = reduce("softmax_stats", x)
    return x, careful(stats) if _is_summed(node) else stats


def _is_summed(node: fx.Node) -> bool:
    """Through operations on single elements."""
    seen, todo = set[fx.Node](), list(node.users)
    while todo and len(seen) < MAX_FOLLOWED:
        at = todo.pop()
        if op_name(at) in ("sum", "mean"):
            return True
        if at not in seen and is_pointwise(at):
            todo += at.users
        seen.add(at)
    return False


def _softmax(node: fx.Node, get: GetArgument) -> Value:
    x, stats = _stats(node, get)
    exponential = apply(
        "expf" if is_careful(stats) else "exp",
        apply("sub", x, part(stats, 0, "row_max"), hint="shifted"),
    )
    return apply("div", exponential, part(stats, 1, "row_sum"), hint="softmax")


def _log_softmax(node: fx.Node, get: GetArgument) -> Value:
    x, stats = _stats(node, get)
    log_sum = apply("log", part(stats, 1, "row_sum"), hint="log_sum")
    return apply(
        "sub",
        apply("sub", x, part(stats, 0, "row_max"), hint="shifted"),
        log_sum,
        hint="log_softmax",
    )


def logsumexp(x: Value) -> Value:
    """max + log(sum of exp(x - max)); an infinite maximum is the result itself."""
    stats = reduce("softmax_stats", x)
    row_max = part(stats, 0, "row_max")
    finite = apply("add", row_max, apply("log", part(stats, 1, "row_sum"), hint="log_sum"))
    # The maximum of the pair ignores NaN; this one keeps it, so that NaN beside infinity stays NaN.
    largest = reduce("max", x, hint="largest")
    infinite = apply("eq", apply("abs", largest), float("inf"), dtype="bool", hint="infinite")
    return apply("where", infinite, row_max, finite, hint="logsumexp")


def _affine(value: Value, node: fx.Node, get: GetArgument) -> Value:
    if argument(node, "weight") is not None:
        value = apply("mul", value, as_float(get("weight")), hint="scaled")
    if argument(node, "bias") is not None:
        value = apply("add", value, as_float(get("bias")), hint="shifted")
    return value


def _standardize(node: fx.Node, get: GetArgument) -> Value:
    x = as_float(get("input"))
    moments = reduce("moments", x)
    variance = apply("div", part(moments, 1, "m2"), count(), hint="var")
    rstd = apply(
        "rsqrt", apply("add", variance, float(argument(node, "eps")), hint="var_eps"), hint="rstd"
    )
    centered = apply("sub", x, part(moments, 0, "mean"), hint="centered")
    return _affine(apply("mul", centered, rstd, hint="normed"), node, get)


@cache
def default_eps(dtype: torch.dtype) -> float:
    """What this torch adds in an RMS norm that is given no ``eps``: of 16 bits early versions took
    the type's own (0.0078 of bfloat16), later ones that of float32."""
    small = torch.full((1,), 2.0**-10, dtype=dtype)
    found = float(torch.nn.functional.rms_norm(small, (1,)))
    known = [torch.finfo(kind).eps for kind in (dtype, torch.float32)]
    return min(known, key=lambda eps: abs(2.0**-10 / math.sqrt(2.0**-20 + eps) - found))


def _rms_norm(node: fx.Node, get: GetArgument) -> Value:
    x = as_float(get("input"))
    eps = argument(node, "eps")
    if eps is None:
        eps = default_eps(node.meta["val"].dtype)
    square = apply(
        "div", reduce("sum", apply("square", x), hint="square_sum"), count(), hint="mean_square"
    )
    rstd = apply("rsqrt", apply("add", square, float(eps), hint="mean_square_eps"), hint="rstd")
    return _affine(apply("mul", x, rstd, hint="normed"), node, get)


def _plain(kind: str) -> Callable[[fx.Node, GetArgument], Value]:
    return lambda node, get: reduce(kind, as_float(get("self")), hint=HINTS[kind])


def _sum(node: fx.Node, get: GetArgument) -> Value:
    total = reduce("sum", as_float(get("self")), hint=HINTS["sum"])
    if not is_counted(node):
        return total
    return apply("to_int64", total, dtype="int64", hint="count")  # exact: space.MAX_COUNTED


def _place(kind: str, get: GetArgument) -> Value:
    place = part(reduce(kind, as_float(get("self"))), 1, "place")
    return apply("to_int64", place, dtype="int64", hint="index")  # exact: space.MAX_COUNTED


def _truth(kind: str) -> Callable[[fx.Node, GetArgument], Value]:
    """Whether the largest of 0 and 1, or the smallest, is 1. NaN counts as true, as it does in
    torch."""

    def build(node: fx.Node, get: GetArgument) -> Value:
        x = get("self")
        x = x if x.dtype == "bool" else apply("to_bool", x, dtype="bool")
        return apply("to_bool", reduce(kind, as_float(x), hint=HINTS[kind]), dtype="bool")

    return build


HINTS = {"sum": "total", "max": "largest", "min": "smallest", "prod": "product"}


def _mean(node: fx.Node, get: GetArgument) -> Value:
    return mean(as_float(get("self")))


def mean(x: Value) -> Value:
    """The mean over the row."""
    return apply("div", reduce("sum", x, hint="total"), count(), hint="mean")


def _variance(node: fx.Node, get: GetArgument) -> Value:
    correction = argument(node, "correction", None)
    if correction is None:
        correction = 1 if argument(node, "unbiased", True) else 0
    moments = reduce("moments", as_float(get("self")))
    degrees = apply("sub", count(), float(correction), hint="degrees") if correction else count()
    if correction and correction > 1:  # torch divides by zero at least, never by less
        degrees = apply("clamp", degrees, 0.0, None, hint="degrees")
    variance = apply("div", part(moments, 1, "m2"), degrees, hint="var")
    return variance if op_name(node) == "var" else apply("root", variance, hint="std")


def _norm(node: fx.Node, get: GetArgument) -> Value:
    x, order = as_float(get("self")), argument(node, "p", argument(node, "ord", 2))
    if order == 1:
        return reduce("sum", apply("abs", x), hint="norm")
    if order == math.inf:
        return reduce("max", apply("abs", x), hint="norm")
    return apply("root", reduce("sum", apply("square", x), hint="square_sum"), hint="norm")


def _cosine_similarity(node: fx.Node, get: GetArgument) -> Value:
    """Each factor is divided by its own norm, as eager does: products of large numbers would
    overflow. Eager raises short norms to ``eps`` behind autograd's back, so the gradient passes."""
    least = float(argument(node, "eps", 1e-8))
    parts = []
    for name in ("x1", "x2"):
        x = as_float(get(name))
        length = apply("root", reduce("sum", apply("square", x), hint="square_sum"), hint="length")
        parts.append(
            apply("div", x, apply("raised", length, least, None, hint="length"), hint="unit")
        )
    return reduce("sum", apply("mul", *parts, hint="product"), hint="cosine")


def _pairwise_distance(node: fx.Node, get: GetArgument) -> Value:
    eps = float(argument(node, "eps", 1e-6))
    between = apply(
        "add", apply("sub", as_float(get("x1")), as_float(get("x2")), hint="difference"), eps
    )
    if argument(node, "p", 2.0) == 1:
        return reduce("sum", apply("abs", between), hint="distance")
    return apply(
        "root", reduce("sum", apply("square", between), hint="square_sum"), hint="distance"
    )


def _loss(node: fx.Node, get: GetArgument) -> Value:
    x, y = as_float(get("self")), as_float(get("target"))
    if argument(node, "pos_weight") is None:
        each = LOSS[op_name(node)](node, x, y)
    else:
        each = _bce_of_rare(x, y, as_float(get("pos_weight")))
    if argument(node, "weight") is not None:
        each = apply("mul", each, as_float(get("weight")), hint="weighted")
    how = argument(node, "reduction", 1)
    if how == 0:
        return each
    return mean(each) if how == 1 else reduce("sum", each, hint="total")


def _smooth_l1(node: fx.Node, x: Value, y: Value) -> Value:
    beta = float(argument(node, "beta", 1.0))
    distance = apply("abs", apply("sub", x, y, hint="difference"), hint="distance")
    if beta == 0.0:
        return distance
    inside = apply("mul", apply("square", distance), 0.5 / beta, hint="quadratic")
    outside = apply("sub", distance, 0.5 * beta, hint="linear")
    return apply(
        "where",
        apply("lt", distance, beta, dtype="bool", hint="near"),
        inside,
        outside,
        hint="loss",
    )


def _huber(node: fx.Node, x: Value, y: Value) -> Value:
    delta = float(argument(node, "delta", 1.0))
    distance = apply("abs", apply("sub", x, y, hint="difference"), hint="distance")
    inside = apply("mul", apply("square", distance), 0.5, hint="quadratic")
    outside = apply("mul", apply("sub", distance, 0.5 * delta), delta, hint="linear")
    return apply(
        "where",
        apply("le", distance, delta, dtype="bool", hint="near"),
        inside,
        outside,
        hint="loss",
    )


def _kl_div(node: fx.Node, x: Value, y: Value) -> Value:
    if argument(node, "log_target"):
        return apply("mul", apply("exp", y), apply("sub", y, x, hint="difference"), hint="loss")
    # target * (log target - input), and 0 where the target is 0 (xlogy); NaN passes through.
    product = apply("mul", y, apply("sub", apply("log", y), x), hint="divergence")
    zero = apply("eq", y, 0.0, dtype="bool", hint="absent")
    return apply("where", zero, apply("mul", apply("neg", y), x), product, hint="loss")


def _bce_with_logits(node: fx.Node, x: Value, y: Value) -> Value:
    # (1 - y) * x + log(1 + exp(-x)), with softplus's stable form of the logarithm.
    rest = apply("mul", apply("sub", 1.0, y), x, hint="linear")
    return apply("sub", rest, apply("log_sigmoid", x), hint="loss")


def _bce_of_rare(x: Value, y: Value, weight: Value) -> Value:
    """With weighted positives: (1 - y) * x - (1 + (weight - 1) * y) * log(sigmoid(x))."""
    rest = apply("mul", apply("sub", 1.0, y), x, hint="linear")
    share = apply("add", apply("mul", apply("sub", weight, 1.0), y), 1.0, hint="share")
    return apply("sub", rest, apply("mul", share, apply("log_sigmoid", x)), hint="loss")


def _bce(node: fx.Node, x: Value, y: Value) -> Value:
    """Both logarithms are at least -100, as torch has it."""
    low = apply("clamp", apply("log", x, hint="low"), -100.0, None, hint="log_probability")
    rest = apply(
        "clamp", apply("log1p", apply("neg", x), hint="low"), -100.0, None, hint="log_rest"
    )
    return apply("bce", x, y, low, rest, hint="loss")


def _hinge_embedding(node: fx.Node, x: Value, y: Value) -> Value:
    margin = apply(
        "clamp", apply("sub", float(argument(node, "margin", 1.0)), x), 0.0, None, hint="hinge"
    )
    negative = apply("where", apply("ne", y, 1.0, dtype="bool"), margin, 0.0)
    return apply(
        "add", negative, apply("where", apply("ne", y, -1.0, dtype="bool"), x, 0.0), hint="loss"
    )


LOSS: dict[str, Callable[[fx.Node, Value, Value], Value]] = {
    "mse_loss": lambda node, x, y: apply("square", apply("sub", x, y, hint="difference")),
    "l1_loss": lambda node, x, y: apply("abs", apply("sub", x, y, hint="difference")),
    "smooth_l1_loss": _smooth_l1,
    "huber_loss": _huber,
    "kl_div": _kl_div,
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "hinge_embedding_loss": _hinge_embedding,
    "soft_margin_loss": lambda node, x, y: apply(
        "softplus", apply("neg", apply("mul", x, y)), 1.0, 3.0e38
    ),
}

BUILDERS: dict[str, Callable[[fx.Node, GetArgument], Value]] = {
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
    "layer_norm": _standardize,
    "group_norm": _standardize,
    "instance_norm": _standardize,
    "rms_norm": _rms_norm,
    "sum": _sum,
    "any": _truth("max"),
    "all": _truth("min"),
    "amax": _plain("max"),
    "max": _plain("max"),
    "amin": _plain("min"),
    "min": _plain("min"),
    "prod": _plain("prod"),
    "mean": _mean,
    **dict.fromkeys(POOLS, _mean),
    "argmax": lambda node, get: _place("argmax", get),
    "argmin": lambda node, get: _place("argmin", get),
    "logsumexp": lambda node, get: logsumexp(as_float(get("self"))),
    "var": _variance,
    "std": _variance,
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "cosine_similarity": _cosine_similarity,
    "pairwise_distance": _pairwise_distance,
}
