"""Reverse-mode derivatives of the expression IR: the gradient of a region is again values of the
IR.

`gradients(outputs, seeds, wanted) -> {operand: Value}` walks the values backward once. A rowwise
value that is read by full ones collects their contributions with a ``sum`` over the row; the rest
is pointwise. At kinks the subgradient is the one that torch's own backward takes (clamp keeps its
bounds, hardtanh does not, maximum splits ties in half). Moments and softmax statistics have closed
forms; a row maximum that only stabilizes exponentials cancels and counts as a constant. Not
covered: products over a row, operations without a rule (Underivable says which)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from kernel_lsp.rewrite.codegen.core.ir import (
    Operand,
    Scalar,
    Value,
    apply,
    count,
    moved,
    part,
    reduce,
    topological,
)
from kernel_lsp.rewrite.codegen.core.moves import Join

FLOATS = ("float32", "bfloat16", "float16")
Arg: TypeAlias = Value | Scalar | None
DerivativeRule: TypeAlias = "Callable[..., tuple[Value | None, ...]]"
"""(gradient of the result, the result, *arguments) -> one gradient for each argument, or None."""


class Underivable(Exception):
    """No rule: the operation keeps the original path while gradients are recorded."""


def gradients(
    outputs: Iterable[Value], seeds: Mapping[Value, Value], wanted: Iterable[Operand]
) -> dict[Operand, Value]:
    """The gradient of each wanted operand, as a value. ``seeds``: each output's incoming gradient.
    An operand that only decides (a mask) has none. Raises Underivable, also where torch would hand
    on zeros."""
    found, wanted = tape(outputs, seeds), list(wanted)
    if any(operand not in found for operand in wanted) or not wanted:
        stepped = next((value.op for value in topological(outputs) if value.op in STEPS), None)
        if stepped is not None or not found:
            raise Underivable(f"no gradient comes through {stepped or 'comparisons'}")
    return {operand: found[operand] for operand in wanted if operand in found}


def tape(outputs: Iterable[Value], seeds: Mapping[Value, Value]) -> dict[Operand, Value]:
    """The gradient of every operand that one reaches."""
    made = _Tape(seeds)
    for value in reversed(list(topological(outputs))):
        made.back(value)
    return {value.operand: grad for value, grad in made.loads.items() if value.operand is not None}


class _Tape:
    def __init__(self, seeds: Mapping[Value, Value]) -> None:
        self.grads: dict[Value, Value] = dict(seeds)
        self.parts: dict[tuple[Value, int], Value] = {}
        self.loads: dict[Value, Value] = {}

    def back(self, value: Value) -> None:
        """Hand the value's gradient on to its arguments."""
        if value.op in ("moments", "softmax_stats"):
            return self._pair(value)
        grad = self.grads.get(value)
        if grad is None:
            return None
        if value.op == "load":
            self.loads[value] = grad
        elif value.op == "part":
            pair, index = value.args
            assert isinstance(pair, Value) and isinstance(index, int)
            self.parts[pair, index] = _fit_gradient(value, grad)
        elif value.op in ROW:
            (x,) = value.values
            self._add(x, ROW[value.op](grad, value, x))
        elif value.op not in CONSTANT:
            self._pointwise(value, grad)
        return None

    def _pointwise(self, value: Value, grad: Value) -> None:
        if value.op not in RULES:
            raise Underivable(f"{value.op} has no derivative here")
        found = RULES[value.op](grad, value, *value.args)
        for arg, contribution in zip(value.args, found, strict=False):
            if isinstance(arg, Value) and contribution is not None:
                made_here = contribution is not grad and contribution.hint is None
                hint = f"grad_{arg.hint or arg.op}" if made_here else contribution.hint
                self._add(arg, replace(contribution, hint=hint) if made_here else contribution)

    def _pair(self, pair: Value) -> None:
        (x,) = pair.values
        first, second = (self.parts.get((pair, index)) for index in (0, 1))
        if pair.op == "softmax_stats":
            if second is not None:  # d sum(exp(x - max)) = exp(x - max)
                shifted = apply("sub", x, part(pair, 0, "row_max"), hint="shifted")
                self._add(
                    x, apply("mul", apply("exp", shifted, hint="exp"), second, hint="grad_exp")
                )
            return
        if first is not None:
            self._add(x, apply("div", first, count(), hint="grad_center"))
        if second is not None:
            # D sum((x - mean)^2) = 2 (x - mean): the mean's own share sums to zero.
            centered = apply("sub", x, part(pair, 0, "mean"), hint="centered")
            rising = apply("mul", centered, 2.0, hint="slope")
            self._add(x, apply("mul", rising, second, hint="grad_spread"))

    def _add(self, arg: Value, contribution: Value) -> None:
        if not _floating(arg):
            return
        contribution = _fit_gradient(arg, contribution)
        earlier = self.grads.get(arg)
        hint = f"grad_{arg.hint or arg.op}"
        self.grads[arg] = (
            contribution if earlier is None else apply("add", earlier, contribution, hint=hint)
        )


def _fit_gradient(arg: Value, grad: Value) -> Value:
    """What a row's value gets is the sum over the row."""
    return (
        reduce("sum", grad, hint=f"grad_{arg.hint or arg.op}")
        if arg.rowwise and not grad.rowwise
        else grad
    )


def _floating(value: Value) -> bool:
    return value.dtype in FLOATS and value.op not in CONSTANT


def _mul(left: Value, right: Arg) -> Value:
    return apply("mul", left, right)


def _where(condition: Value, yes: Arg, no: Arg) -> Value:
    return apply("where", condition, yes, no)


def _test(kind: str, left: Arg, right: Arg) -> Value:
    return apply(kind, left, right, dtype="bool")


def _unary(slope: Callable[[Value, Value], Value]) -> DerivativeRule:
    """``slope(result, x)`` times the incoming gradient."""

    def rule(grad: Value, out: Value, x: Value) -> tuple[Value | None, ...]:
        steep = slope(out, x)
        fresh = steep is not out and steep is not x and steep.hint is None
        return (_mul(grad, replace(steep, hint="slope") if fresh else steep),)

    return rule


def _div_rule(grad: Value, out: Value, a: Arg, b: Arg) -> tuple[Value | None, ...]:
    return apply("div", grad, b), apply("neg", _mul(grad, apply("div", out, b)))


def _power(grad: Value, out: Value, x: Value, exponent: float) -> tuple[Value | None, ...]:
    lower = {2.0: x, 3.0: apply("square", x), 4.0: apply("pow", x, 3.0)}
    if exponent == 1.0:
        return (grad,)
    if exponent in lower:
        return (_mul(_mul(grad, exponent), lower[exponent]),)
    if exponent == 0.5:
        return (apply("div", _mul(grad, 0.5), out),)
    return (_mul(_mul(grad, exponent), apply("div", out, x)),)


def _where_rule(
    grad: Value, out: Value, condition: Value, a: Arg, b: Arg
) -> tuple[Value | None, ...]:
    return None, _where(condition, grad, 0.0), _where(condition, 0.0, grad)


def _extreme(loses: str, wins: str) -> DerivativeRule:
    def rule(grad: Value, out: Value, a: Arg, b: Arg) -> tuple[Value | None, ...]:
        shared = _where(_test("eq", a, b), _mul(grad, 0.5), grad)
        return _where(_test(loses, a, b), 0.0, shared), _where(_test(wins, a, b), 0.0, shared)

    return rule


def _clamp_rule(inside: tuple[str, str]) -> DerivativeRule:
    def rule(grad: Value, out: Value, x: Value, low: Arg, high: Arg) -> tuple[Value | None, ...]:
        for kind, bound in zip(inside, (low, high), strict=True):
            if bound is not None:
                grad = _where(_test(kind, x, bound), grad, 0.0)
        return (grad,)

    return rule


def _softplus(
    grad: Value, out: Value, x: Value, beta: float, threshold: float
) -> tuple[Value | None, ...]:
    scaled = x if beta == 1.0 else _mul(x, beta)
    return (_where(_test("gt", scaled, threshold), grad, _mul(grad, apply("sigmoid", scaled))),)


def _bce(
    grad: Value, out: Value, x: Value, y: Arg, low: Value, rest: Value
) -> tuple[Value | None, ...]:
    """(x - y) / (x (1 - x)), the denominator at least 1e-12, as torch has it; none for the
    target."""
    steep = apply("clamp", _mul(apply("sub", 1.0, x), x), 1e-12, None, hint="variance")
    return apply("div", _mul(grad, apply("sub", x, y)), steep), None, None, None


def _elu(
    grad: Value, out: Value, x: Value, alpha: float, scale: float, inner: float
) -> tuple[Value | None, ...]:
    exponential = apply("exp", x if inner == 1.0 else _mul(x, inner))
    negative = _mul(_mul(grad, inner * alpha * scale), exponential)
    return (_where(_test("le", x, 0.0), negative, _mul(grad, scale)),)


def _gelu(out: Value, x: Value) -> Value:
    """cdf(x) + x pdf(x)."""
    cdf = apply("mul", apply("add", apply("erf", _mul(x, math.sqrt(0.5))), 1.0), 0.5, hint="cdf")
    density = apply("exp", _mul(apply("square", x), -0.5), hint="density")
    pdf = apply("mul", density, 1.0 / math.sqrt(2.0 * math.pi), hint="pdf")
    return apply("add", cdf, _mul(x, pdf), hint="slope")


def _gelu_tanh(out: Value, x: Value) -> Value:
    k = math.sqrt(2.0 / math.pi)
    square = apply("square", x)
    tanh = apply("tanh", _mul(_mul(x, k), apply("add", _mul(square, 0.044715), 1.0)), hint="tanh")
    inner = _mul(apply("add", _mul(square, 3.0 * 0.044715), 1.0), k)
    rising = _mul(apply("sub", 1.0, apply("square", tanh)), inner)
    both = apply("add", apply("add", tanh, 1.0), _mul(x, rising))
    return apply("mul", both, 0.5, hint="slope")


def _silu(out: Value, x: Value) -> Value:
    gate = apply("sigmoid", x, hint="gate")
    rest = apply("sub", 1.0, gate)
    return apply("mul", gate, apply("add", _mul(rest, x), 1.0), hint="slope")


def _mish(grad: Value, out: Value, x: Value, _exp: Value) -> tuple[Value | None, ...]:
    tanh = apply("tanh", apply("softplus", x, 1.0, 20.0), hint="tanh")
    rising = _mul(apply("sigmoid", x), apply("sub", 1.0, apply("square", tanh)))
    return _mul(grad, apply("add", tanh, _mul(x, rising), hint="slope")), None


def _hardsigmoid(grad: Value, out: Value, x: Value) -> tuple[Value | None, ...]:
    inside = apply("and", _test("gt", x, -3.0), _test("lt", x, 3.0), dtype="bool")
    return (_where(inside, apply("div", grad, 6.0), 0.0),)


def _hardswish(grad: Value, out: Value, x: Value) -> tuple[Value | None, ...]:
    slope = apply("add", apply("div", x, 3.0), 0.5)
    upper = _where(_test("lt", x, 3.0), _mul(grad, slope), grad)
    return (_where(_test("le", x, -3.0), 0.0, upper),)


def _extremum_rule(grad: Value, out: Value, x: Value) -> Value:
    """amax and amin share the gradient evenly among equal elements."""
    same = _test("eq", x, out)
    ties = reduce("sum", apply("to_float", same), hint="ties")
    return _where(same, apply("div", grad, ties), 0.0)


def _moved_rule(grad: Value, out: Value, x: Value, fill: Scalar) -> tuple[Value | None, ...]:
    """Each element gathers the gradient from where it went; what was filled in has none."""
    assert out.move is not None and not isinstance(out.move, Join)
    return moved(grad, out.move.adjoint()), None


def _totaled_rule(grad: Value, out: Value, x: Value) -> tuple[Value | None, ...]:
    assert out.move is not None
    return (moved(grad, out.move),)


def _joined_rule(grad: Value, out: Value, *parts: Value) -> tuple[Value | None, ...]:
    join = out.move
    assert isinstance(join, Join)
    return tuple(moved(grad, join.window(index)) for index in range(len(parts)))


STEPS = frozenset(["floor", "ceil", "sign"])
"""torch hands zeros on through these."""
CONSTANT = STEPS | {
    "count", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "isnan", "to_bool",
    "to_int64", "kept", "share", "detach",
}  # fmt: skip
"""Results through which no gradient flows."""

ROW: dict[str, Callable[[Value, Value, Value], Value]] = {
    "sum": lambda grad, out, x: grad,
    "max": _extremum_rule,
    "min": _extremum_rule,
}

RULES: dict[str, DerivativeRule] = {
    "add": lambda grad, out, a, b: (grad, grad),
    "sub": lambda grad, out, a, b: (grad, apply("neg", grad) if isinstance(b, Value) else None),
    "mul": lambda grad, out, a, b: (_mul(grad, b), _mul(grad, a) if isinstance(b, Value) else None),
    "div": _div_rule,
    "neg": lambda grad, out, x: (apply("neg", grad),),
    # Norms and standard deviations of zero: torch's own backward gives 0, where 1 / 0 would not.
    "root": lambda grad, out, x: (
        _where(_test("eq", out, 0.0), 0.0, apply("div", _mul(grad, 0.5), out)),
    ),
    "pow": _power,
    "where": _where_rule,
    "maximum": _extreme("lt", "gt"),
    "minimum": _extreme("gt", "lt"),
    "clamp": _clamp_rule(("ge", "le")),
    "hardtanh": _clamp_rule(("gt", "lt")),
    "raised": lambda grad, out, x, low, high: (grad,),
    "relu": lambda grad, out, x: (_where(_test("le", x, 0.0), 0.0, grad),),
    "leaky_relu": lambda grad, out, x, slope: (
        _where(_test("gt", x, 0.0), grad, _mul(grad, slope)),
    ),
    "threshold": lambda grad, out, x, limit, value: (_where(_test("le", x, limit), 0.0, grad),),
    "softplus": _softplus,
    "bce": _bce,
    "moved": _moved_rule,
    "joined": _joined_rule,
    "totaled": _totaled_rule,
    "elu": _elu,
    "mish": _mish,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    **dict.fromkeys(
        ["to_float", "round_to_bfloat16", "round_to_float16"], lambda grad, out, x: (grad,)
    ),
    **{
        name: _unary(slope)
        for name, slope in {
            "reciprocal": lambda out, x: apply("neg", apply("square", out)),
            "square": lambda out, x: _mul(x, 2.0),
            "abs": lambda out, x: apply("sign", x),
            "exp": lambda out, x: out,
            "expf": lambda out, x: out,
            "exp2": lambda out, x: _mul(out, math.log(2.0)),
            "log": lambda out, x: apply("reciprocal", x),
            "log2": lambda out, x: apply("reciprocal", _mul(x, math.log(2.0))),
            "log1p": lambda out, x: apply("reciprocal", apply("add", x, 1.0)),
            "expm1": lambda out, x: apply("add", out, 1.0),
            "sqrt": lambda out, x: apply("reciprocal", _mul(out, 2.0)),
            "rsqrt": lambda out, x: _mul(_mul(apply("square", out), out), -0.5),
            "sin": lambda out, x: apply("cos", x),
            "cos": lambda out, x: apply("neg", apply("sin", x)),
            "erf": lambda out, x: _mul(
                apply("exp", apply("neg", apply("square", x))), 2.0 / math.sqrt(math.pi)
            ),
            "tanh": lambda out, x: apply("sub", 1.0, apply("square", out)),
            "cosh": lambda out, x: apply("sinh", x),
            "sinh": lambda out, x: apply("cosh", x),
            "sigmoid": lambda out, x: _mul(out, apply("sub", 1.0, out)),
            "log_sigmoid": lambda out, x: apply("sigmoid", apply("neg", x)),
            "gelu": _gelu,
            "gelu_tanh": _gelu_tanh,
            "silu": _silu,
        }.items()
    },
}


def total(earlier: Value | None, more: Value) -> Value:
    """The sum of two gradients, the first of which may not be there yet."""
    return more if earlier is None else apply("add", earlier, more, hint=more.hint or earlier.hint)
