"""One rule per operation: facts of the arguments in, fact of the result out.

Bounds are computed in double precision and moved outward when the tensor's own dtype would round
them, so that they hold for the rounded arithmetic too. A missing rule means an unknown range,
never a guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from kernel_lsp.rewrite.facts.bounds import like, operand, round_to_dtype, widen_bounds
from kernel_lsp.rewrite.facts.tensors import INF, TensorFact, unknown_fact

TransferFunction = Callable[[TensorFact, list[Any], Callable[[str], Any]], TensorFact]
"""(result with shape and dtype only, facts or literals of the arguments, argument by name) ->
result."""

RULES: dict[str, TransferFunction] = {}


class KnownFacts(Protocol):
    """What of a graph the rules read."""

    constants: dict[fx.Node, torch.Tensor]

    def fact(self, node: fx.Node) -> TensorFact:
        """What is proved of an argument's value."""


def of(graph: KnownFacts, node: fx.Node, argument: Callable[[fx.Node, str], Any]) -> TensorFact:
    """The fact of one node; facts of its arguments are known already (Graph.fact sees to it).
    ``argument`` reads one by its name, or the schema's default (graph.argument)."""
    base = unknown_fact(node.meta.get("val"))
    if node in graph.constants:
        return _literal(base, graph.constants[node])
    if node.op != "call_function" or base.dtype is None or base.dtype.is_complex:
        return base
    if "opaque" in node.meta:  # a hook may compute something else next time
        return base
    name = _opname(node)
    if name == "getitem":
        return _part(graph, base, node)
    rule = RULES.get(name)
    if rule is None or base.numel == 0:
        return base
    made = rule(base, [_operand(graph, a) for a in node.args], lambda key: argument(node, key))
    return replace(made, shape=base.shape, dtype=base.dtype, stride=base.stride)


def _opname(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return (
        schema.name.split("::")[1] if schema is not None else getattr(node.target, "__name__", "")
    )


def _operand(graph: KnownFacts, value: Any) -> Any:
    if isinstance(value, fx.Node):
        return graph.fact(value)
    return [_operand(graph, item) for item in value] if isinstance(value, (list, tuple)) else value


def _literal(base: TensorFact, tensor: torch.Tensor) -> TensorFact:
    if tensor.numel() == 0 or tensor.is_complex():
        return base
    values = tensor.double()
    real = values[~values.isnan()]
    lo, hi = (real.min().item(), real.max().item()) if real.numel() else (-INF, INF)
    whole = bool((values == values.round()).all())
    nan, inf = bool(values.isnan().any()), bool(values.isinf().any())
    return replace(base, lo=lo, hi=hi, may_be_nan=nan, may_be_inf=inf, integer=whole)


def _part(graph: KnownFacts, base: TensorFact, node: fx.Node) -> TensorFact:
    """One of several results; those that select from their input keep its range."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or not base.dtype or not base.dtype.is_floating_point:
        return base
    selecting = (
        "max", "min", "topk", "sort", "split", "split_with_sizes", "chunk", "unbind",
        "median", "kthvalue", "max_pool1d_with_indices", "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    )  # fmt: skip
    if _opname(source) not in selecting or not isinstance(source.args[0], fx.Node):
        return base
    return like(base, graph.fact(source.args[0]))


def _rule(*names: str) -> Callable[[TransferFunction], TransferFunction]:
    def add(rule: TransferFunction) -> TransferFunction:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


# --- rules: moving values ----------------------------------------------------------------


@_rule(
    "view", "reshape", "_unsafe_view", "transpose", "permute", "unsqueeze", "squeeze", "expand",
    "contiguous", "clone", "detach", "flatten", "unflatten", "t", "numpy_T", "mT", "slice",
    "select", "narrow", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "amax",
    "amin", "flip", "repeat", "expand_as", "view_as", "gather", "index_select", "alias", "movedim",
    "roll", "repeat_interleave", "diagonal", "max", "min",
)  # fmt: skip
def _same(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if len(args) > 1 and isinstance(args[1], TensorFact) and arg("other") is not None:
        return _hull(base, [args[0], args[1]])  # max(a, b)
    if arg("repeats") is not None and arg("self") is None:
        return base  # repeat_interleave of counts alone yields positions
    # view(dtype) reads the same bits as other numbers
    return like(base, args[0]) if args[0].dtype == base.dtype else base


@_rule("to", "_to_copy", "float", "double")
def _cast(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    if base.dtype == fact.dtype or (
        base.floating and fact.integer and max(abs(fact.lo), abs(fact.hi)) <= 256
    ):
        return like(base, fact)
    if base.floating and fact.floating and _holds_all(base.dtype, fact.dtype):
        return like(base, fact)
    return base


def _holds_all(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Every number of the narrow dtype exists in the wide one (bfloat16 has a wider range than
    float16)."""
    ours, theirs = torch.finfo(wide), torch.finfo(narrow)
    return ours.eps <= theirs.eps and ours.max >= theirs.max


@_rule("dropout", "feature_dropout", "alpha_dropout")
def _dropout(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return base if arg("train") and arg("p") != 0 else like(base, args[0])


def _hull(base: TensorFact, parts: list[Any]) -> TensorFact:
    facts = [operand(part, base.dtype) for part in parts]
    return replace(
        base,
        lo=min(f.lo for f in facts),
        hi=max(f.hi for f in facts),
        may_be_nan=any(f.may_be_nan for f in facts),
        may_be_inf=any(f.may_be_inf for f in facts),
        integer=all(f.integer for f in facts),
    )


@_rule("cat", "stack", "concat")
def _join_rule(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return (
        _hull(base, args[0])
        if all(isinstance(a, TensorFact) and a.dtype == base.dtype for a in args[0])
        else base
    )


@_rule("where")
def _where(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return _hull(base, args[1:]) if len(args) == 3 else base


@_rule("masked_fill")
def _mask_rule(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return _hull(base, [args[0], args[2]])


@_rule("tril", "triu")
def _triangle(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return _hull(base, [args[0], 0.0])


@_rule("pad", "constant_pad_nd")
def _pad_rule(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if arg("mode") not in (None, "constant"):
        return like(base, args[0])
    return _hull(base, [args[0], arg("value") or 0.0])


# --- rules: constants --------------------------------------------------------------------


@_rule("zeros", "zeros_like", "new_zeros")
def _zeros(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return replace(base, lo=0.0, hi=0.0, may_be_nan=False, may_be_inf=False, integer=True)


@_rule("ones", "ones_like", "new_ones")
def _ones(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return replace(base, lo=1.0, hi=1.0, may_be_nan=False, may_be_inf=False, integer=True)


@_rule("full", "full_like", "new_full", "scalar_tensor")
def _full(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    value = arg("fill_value") if arg("fill_value") is not None else arg("s")
    if not isinstance(value, (bool, int, float)) or not (
        base.floating or float(value).is_integer()
    ):
        return base
    return base if base.dtype == torch.bool else _hull(base, [value])


@_rule("eye", "rand", "rand_like", "one_hot")
def _unit(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return replace(base, lo=0.0, hi=1.0, may_be_nan=False, may_be_inf=False)


# --- rules: pointwise --------------------------------------------------------------------


def _monotone(base: TensorFact, fact: TensorFact, function: Callable[[float], float]) -> TensorFact:
    lo, hi = function(fact.lo), function(fact.hi)
    return widen_bounds(base, lo, hi, nan=fact.may_be_nan, inf=fact.may_be_inf)


@_rule("relu")
def _relu(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    made = replace(
        fact,
        lo=max(fact.lo, 0.0),
        hi=max(fact.hi, 0.0),
        may_be_inf=fact.may_be_inf and fact.hi == INF,
    )
    return like(base, made)


@_rule("clamp", "clip", "hardtanh", "relu6", "clamp_min", "clamp_max")
def _clamp(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    bounds = clamp_bounds(base.dtype, arg)
    if bounds is None:
        return base
    fact, (low, high) = args[0], bounds
    lo, hi = min(max(fact.lo, low), high), min(max(fact.hi, low), high)
    open_end = not (math.isfinite(lo) and math.isfinite(hi))
    whole = all(math.isinf(bound) or bound == math.floor(bound) for bound in (low, high))
    return replace(
        like(base, fact),
        lo=lo,
        hi=hi,
        may_be_inf=fact.may_be_inf and open_end,
        integer=fact.integer and whole,
    )


def clamp_bounds(dtype: torch.dtype | None, arg: Any) -> tuple[float, float] | None:
    """(low, high) of a clamp, hardtanh or relu6 with literal bounds, rounded as the kernel rounds
    them."""
    low = arg("min") if arg("min") is not None else arg("min_val")
    high = arg("max") if arg("max") is not None else arg("max_val")
    if low is None and high is None:
        low, high = 0.0, 6.0  # relu6 carries no bounds
    low, high = -INF if low is None else low, INF if high is None else high
    if not all(isinstance(bound, (int, float)) and not math.isnan(bound) for bound in (low, high)):
        return None
    return round_to_dtype(dtype, float(low)), round_to_dtype(dtype, float(high))


def _bounded_rule(
    lo: float, hi: float, *, sign: bool = False, inf_makes_nan: bool = False
) -> TransferFunction:
    """A function whose values lie in [lo, hi]; ``sign``: f(x) has the sign of x."""

    def rule(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
        fact = args[0]
        low = max(lo, 0.0) if sign and fact.lo >= 0 else lo
        high = min(hi, 0.0) if sign and fact.hi <= 0 else hi
        nan = fact.may_be_nan or (inf_makes_nan and fact.may_be_inf)
        inf = not (math.isfinite(low) and math.isfinite(high)) and base.may_be_inf
        return replace(base, lo=low, hi=high, may_be_nan=nan, may_be_inf=inf)

    return rule


RULES |= {
    "sigmoid": _bounded_rule(0.0, 1.0),
    "hardsigmoid": _bounded_rule(0.0, 1.0),
    "tanh": _bounded_rule(-1.0, 1.0, sign=True),
    "erf": _bounded_rule(-1.0, 1.0, sign=True),
    "sin": _bounded_rule(-1.0, 1.0, inf_makes_nan=True),
    "cos": _bounded_rule(-1.0, 1.0, inf_makes_nan=True),
    "softmax": _bounded_rule(0.0, 1.0, inf_makes_nan=True),
    "log_softmax": _bounded_rule(-INF, 0.0, inf_makes_nan=True),
    "log_sigmoid": _bounded_rule(-INF, 0.0),
    "atan": _bounded_rule(-1.5708, 1.5708, sign=True),
    "expm1": _bounded_rule(-1.0, INF, sign=True),
    "selu": _bounded_rule(-1.7582, INF, sign=True),
    # Lower bounds of the smooth rectifiers, rounded away from zero.
    "gelu": _bounded_rule(-0.18, INF, sign=True, inf_makes_nan=True),
    "silu": _bounded_rule(-0.28, INF, sign=True, inf_makes_nan=True),
    "mish": _bounded_rule(-0.31, INF, sign=True, inf_makes_nan=True),
    "hardswish": _bounded_rule(-0.376, INF, sign=True, inf_makes_nan=True),
}


@_rule("leaky_relu")
def _leaky(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    slope = float(arg("negative_slope"))
    if slope < 0:
        return base
    made = _monotone(base, args[0], lambda x: x if x >= 0 else x * slope)
    return replace(made, may_be_nan=made.may_be_nan or (slope == 0 and args[0].may_be_inf))


@_rule("exp")
def _exp(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """The device's function may be off by a few last places."""
    if not base.floating:
        return base
    fact, slack = args[0], 8 * torch.finfo(base.dtype).eps
    top = math.exp(fact.hi) * (1 + slack) if fact.hi < 700 else INF
    low = math.exp(fact.lo) * (1 - slack) if -80 < fact.lo < 700 else 0.0
    return widen_bounds(base, low, top, nan=fact.may_be_nan, inf=fact.may_be_inf and fact.hi == INF)


@_rule("elu", "celu")
def _elu(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """x above zero (times scale), and no lower than -alpha * scale; rounded away from zero."""
    alpha, scale = float(arg("alpha")), float(arg("scale") or 1)
    if alpha <= 0 or scale <= 0 or float(arg("input_scale") or 1) <= 0:
        return base
    slack = 1 + 4 * torch.finfo(base.dtype).eps if base.floating else 1.0
    return _bounded_rule(-alpha * scale * slack, INF, sign=True)(base, args, arg)


@_rule("threshold")
def _threshold(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """x where it is larger than the threshold (or NaN), else the value."""
    fact, limit = args[0], round_to_dtype(base.dtype, float(arg("threshold")))
    if not base.floating or math.isnan(limit):
        return base
    kept = replace(fact, lo=max(fact.lo, limit), hi=max(fact.hi, limit))
    return _hull(base, [kept, arg("value")])


@_rule("hardshrink", "softshrink")
def _shrink(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """Toward zero, never past it."""
    return _hull(base, [args[0], 0.0]) if float(arg("lambd")) >= 0 else base


@_rule("logsumexp")
def _logsumexp(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """At least the largest term, which is taken out before the exponentials."""
    fact = args[0]
    lo = fact.lo if base.floating and fact.floating and fact.numel else -INF
    return replace(base, lo=lo, may_be_nan=fact.may_be_nan)


@_rule("rsqrt")
def _rsqrt(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """Never negative but for zeros: that of -0.0 is -inf, and bounds do not tell zeros apart."""
    fact = args[0]
    lo = 0.0 if fact.lo > 0 else -INF
    return replace(base, lo=lo, may_be_nan=fact.may_be_nan or fact.lo < 0)


@_rule("softplus")
def _softplus(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return _bounded_rule(0.0, INF)(base, args, arg) if float(arg("beta")) > 0 else base


@_rule("abs")
def _abs(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    if not base.floating:
        return base  # abs of the least integer is negative
    low = 0.0 if fact.lo <= 0 <= fact.hi else min(abs(fact.lo), abs(fact.hi))
    return replace(like(base, fact), lo=low, hi=max(abs(fact.lo), abs(fact.hi)))


@_rule("square")
def _square(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if not base.floating:
        return base
    fact = args[0]
    ends = fact.lo * fact.lo, fact.hi * fact.hi
    low = 0.0 if fact.lo <= 0 <= fact.hi else min(ends)
    return widen_bounds(base, low, max(ends), nan=fact.may_be_nan, inf=fact.may_be_inf)


@_rule("pow")
def _pow(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    power = args[1]
    even = isinstance(power, (int, float)) and power > 0 and power % 2 == 0
    if even and power == 2:
        return _square(base, args, arg)
    return replace(base, lo=0.0, may_be_nan=args[0].may_be_nan) if even and base.floating else base


@_rule("sqrt")
def _sqrt(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    return replace(
        base, lo=0.0, may_be_nan=fact.may_be_nan or fact.lo < 0, may_be_inf=fact.may_be_inf
    )


@_rule("neg")
def _neg(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    return replace(like(base, fact), lo=-fact.hi, hi=-fact.lo) if base.floating else base


@_rule("floor", "ceil", "round", "trunc")
def _whole(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    if arg("decimals"):
        return base
    lo = math.floor(fact.lo) if math.isfinite(fact.lo) else fact.lo
    hi = math.ceil(fact.hi) if math.isfinite(fact.hi) else fact.hi
    return replace(like(base, fact), lo=float(lo), hi=float(hi), integer=True)


@_rule("minimum", "maximum")
def _extreme(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return _hull(base, args[:2])


@_rule("add")
def _add(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if arg("alpha") not in (None, 1) or not base.floating:
        return base
    a, b = (operand(value, base.dtype) for value in args[:2])
    return _sum_of(base, a, b)


@_rule("sub")
def _sub(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if arg("alpha") not in (None, 1) or not base.floating:
        return base
    a, b = (operand(value, base.dtype) for value in args[:2])
    return _sum_of(base, a, replace(b, lo=-b.hi, hi=-b.lo))


def _sum_of(base: TensorFact, a: TensorFact, b: TensorFact) -> TensorFact:
    nan = a.may_be_nan or b.may_be_nan or (a.may_be_inf and b.may_be_inf)
    return widen_bounds(base, a.lo + b.lo, a.hi + b.hi, nan=nan, inf=a.may_be_inf or b.may_be_inf)


@_rule("div")
def _div(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """Only by a number. Moved outward: devices multiply by the rounded inverse, eager CPU code
    divides."""
    fact, number = args[0], args[1]
    if not base.floating or arg("rounding_mode") is not None or not isinstance(fact, TensorFact):
        return base
    if (
        isinstance(number, TensorFact)
        or number == 0
        or not math.isfinite(number)
        or round_to_dtype(base.dtype, number) == 0
    ):
        return base
    low, high = sorted((fact.lo / number, fact.hi / number))
    if math.frexp(number)[0] not in (0.5, -0.5):
        slack = 4 * torch.finfo(base.dtype).eps
        low, high = low - abs(low) * slack, high + abs(high) * slack
    return widen_bounds(base, low, high, nan=fact.may_be_nan, inf=fact.may_be_inf)


@_rule("mul")
def _mul(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    if not base.floating:
        return base
    a, b = (operand(value, base.dtype) for value in args[:2])
    return _product(base, a, b)


def _product(base: TensorFact, a: TensorFact, b: TensorFact) -> TensorFact:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi) if not math.isnan(x * y)]
    whole = all(math.isfinite(v) for v in (a.lo, a.hi, b.lo, b.hi))
    signs = corners if whole or len(corners) == 4 else [*corners, 0.0]  # 0 * inf corners count as 0
    made = a.may_be_nan or b.may_be_nan or a.may_be_inf or b.may_be_inf
    if b.lo == b.hi and b.finite and b.lo != 0:
        made = a.may_be_nan
    return widen_bounds(base, min(signs), max(signs), nan=made, inf=a.may_be_inf or b.may_be_inf)


# --- rules: reductions -------------------------------------------------------------------


@_rule("sum", "cumsum")
def _sum(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    fact = args[0]
    if not base.floating:
        return base
    mixed = fact.lo < 0 < fact.hi
    # Partial sums that overflow to both infinities cancel to NaN.
    large = max(-fact.lo, fact.hi) * fact.numel > torch.finfo(base.dtype).max
    nan = fact.may_be_nan or (mixed and (fact.may_be_inf or large))
    return replace(
        base, lo=0.0 if fact.lo >= 0 else -INF, hi=0.0 if fact.hi <= 0 else INF, may_be_nan=nan
    )


@_rule("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
       "adaptive_avg_pool2d",
       "adaptive_avg_pool3d")  # fmt: skip
def _mean(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    """Signs only: the rounded mean of numbers can leave their interval by an ulp."""
    divisor = arg("divisor_override")
    usual = args[0].numel and (divisor is None or divisor > 0)  # the mean of nothing is NaN
    return _sum(base, args, arg) if usual else base


@_rule("norm", "linalg_vector_norm", "var", "std")
def _norm(base: TensorFact, args: list[Any], arg: Any) -> TensorFact:
    return replace(base, lo=0.0)
