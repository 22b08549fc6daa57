"""Pointwise operations as Triton source, with torch's results for NaN and infinity.

Only `triton.language` itself is used: libdevice moved between releases and does not exist in
the interpreter. What it would give (tanh, log1p, expm1) is written out in HELPERS, each good
to a few units in the last place of float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from typing import TypeAlias

Render: TypeAlias = Callable[..., str]

HELPERS = {
    "_kept": '''\
@triton.jit
def _kept(quads, seed, turn, threads, share, fours: tl.constexpr):
    """1.0 where torch's dropout keeps an element, else 0.0: one draw of Philox decides four of them."""
    unit = quads // fours
    count = turn.to(tl.int64) + unit // threads * fours + quads % fours
    thread = (unit % threads).to(tl.uint32)
    low, high = count.to(tl.uint32), (count >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, thread, tl.zeros_like(thread))
    # As curand makes uniform numbers of them: x / 2**32 + 1 / 2**33.
    a = (a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10 < share).to(tl.int8)
    b = (b.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10 < share).to(tl.int8)
    c = (c.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10 < share).to(tl.int8)
    d = (d.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10 < share).to(tl.int8)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d)).to(tl.float32)
''',
    "_tanh": '''\
@triton.jit
def _tanh(x):
    """tanh, accurate near zero too: (1 - e) / (1 + e) alone cancels there."""
    e = tl.exp(-2.0 * tl.abs(x))  # never overflows, unlike exp(2x)
    large = (1.0 - e) / (1.0 + e)
    s = x * x
    series = 1.0 + s * (-0.3333333333 + s * (0.1333333333 + s * (-0.0539682540 + s * 0.0218694885)))
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0.0, -large, large))
''',
    "_log1p": '''\
@triton.jit
def _log1p(x):
    """log(1 + x) without losing small x: the rounding error of 1 + x cancels in the quotient."""
    u = 1.0 + x
    quotient = tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, quotient))
''',
    "_expf": '''\
@triton.jit
def _expf(x):
    """exp of 0 and less by a polynomial (Cephes): tl.exp is off by about 2**-22, in all elements one way."""
    powers = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - powers * 0.693359375) + powers * 2.12194440e-4  # ln 2; the first product is exact
    series = 0.0083334519073 + rest * (0.0013981999507 + rest * 0.00019875691500)
    series = 0.50000001201 + rest * (0.16666665459 + rest * (0.041665795894 + rest * series))
    power_of_two = ((powers.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, (1.0 + (rest + rest * rest * series)) * power_of_two)
''',
    "_expm1": '''\
@triton.jit
def _expm1(x):
    """exp(x) - 1 without losing small x: a series near zero, the difference elsewhere."""
    series = 1.0 + x * (0.5 + x * (0.1666666667 + x * (0.0416666667 + x * (0.0083333333 + x * 0.0013888889))))
    return tl.where(tl.abs(x) < 0.25, x * series, tl.exp(x) - 1.0)
''',
    "_cosh": '''\
@triton.jit
def _cosh(x):
    """(exp(x) + exp(-x)) / 2; the root is squared last, so that it overflows no sooner than the result."""
    root = tl.exp(0.5 * tl.abs(x))
    return 0.5 * root * root + 0.5 / (root * root)
''',
    "_sinh": '''\
@triton.jit
def _sinh(x):
    """(exp(x) - exp(-x)) / 2, by a series near zero, where the difference cancels."""
    s, root = x * x, tl.exp(0.5 * tl.abs(x))
    series = 1.0 + s * (0.1666666667 + s * (0.0083333333 + s * (0.0001984127 + s * 0.0000027557)))
    large = 0.5 * root * root - 0.5 / (root * root)
    return tl.where(tl.abs(x) < 1.0, x * series, tl.where(x < 0.0, -large, large))
''',
    "_softplus": '''\
@triton.jit
def _softplus(x):
    """log(1 + exp(x)); the exponential's argument is never positive, so it cannot overflow."""
    t = tl.exp(-tl.abs(x))
    # log(1 + t) / t for t from 0 to 1: fewer instructions than a logarithm, and as accurate where t is small.
    series = 0.1060361687 + t * (-0.05695915906 + t * (0.01985126261 + t * -0.003243980858))
    series = -0.2495413214 + t * (0.1967593146 + t * (-0.1530557012 + t * series))
    series = 0.9999999953 + t * (-0.4999990242 + t * (0.3332996227 + t * series))
    return tl.where(x > 0.0, x, 0.0) + t * series
''',
    "_nan_max": """\
@triton.jit
def _nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)  # as torch.amax does
""",
    "_nan_min": """\
@triton.jit
def _nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)  # as torch.amin does
""",
    **{
        f"_later_{word}": f"""\
@triton.jit
def _later_{word}(a, i, b, j):
    \"""The {word} of a lane and of an element behind it, and its place; NaN before all others.\"""
    stays = (b {sign} a) | (a != a)  # where b is NaN, no comparison is true
    return tl.where(stays, a, b), tl.where(stays, i, j)
"""
        for word, sign in (("max", "<="), ("min", ">="))
    },
    "_product": """\
@triton.jit
def _product(a, b):
    return a * b
""",
}


def helpers_for(text: str) -> list[str]:
    """Definitions of the helper functions that the source text calls."""
    return [helper for name, helper in HELPERS.items() if f"{name}(" in text or f", {name}" in text]


def atom(text: str) -> str:
    """The text, in parentheses unless it is a name, a number or a call, or stands in parentheses
    already."""
    return text if _is_whole(text) else f"({text})"


def bare(text: str) -> str:
    """The text without the parentheses around all of it: ``(x > 0).to(y)`` begins and ends with
    others."""
    around = text.startswith("(") and text.endswith(")") and _is_whole(text)
    return text[1:-1] if around and _is_balanced(text[1:-1]) else text


def _is_balanced(text: str) -> bool:
    """No parenthesis is closed that is not opened before it."""
    depths = accumulate((char == "(") - (char == ")") for char in text)
    return min(depths, default=0) >= 0


def _is_whole(text: str) -> bool:
    """Binds tighter than any operator: nothing stands outside of brackets but letters, digits and
    dots."""
    depth, text = 0, re.sub(r"(?<=\d)e-(?=\d)", "e", text)  # 1e-05 is one number
    for char, after in zip(text, [*text[1:], ""], strict=True):
        depth += (char in "([") - (char in ")]")
        closed = char in ")]" and after not in ("", ".")
        if depth == 0 and (closed or not (char.isalnum() or char in "_.)]")):
            return False
    return True


def _binary(symbol: str) -> Render:
    return lambda a, b: f"{atom(a)} {symbol} {atom(b)}"


def _call(name: str) -> Render:
    return lambda *args: f"{name}({', '.join(map(bare, args))})"


def _clamp(x: str, low: str | None, high: str | None) -> str:
    # NaN compares false and passes through, as in torch; tl.clamp would drop it.
    text = x if low is None else f"tl.where({x} < {low}, {low}, {x})"
    return text if high is None else f"tl.where({text} > {high}, {high}, {text})"


def _power(x: str, exponent: str) -> str:
    special = {
        "0.5": f"tl.sqrt({x})",
        "-0.5": f"1.0 / tl.sqrt({x})",
        "1.0": x,
        "2.0": f"{x} * {x}",
        "3.0": f"{x} * {x} * {x}",
        "4.0": f"({x} * {x}) * ({x} * {x})",
        "-1.0": f"1.0 / {x}",
        "-2.0": f"1.0 / ({x} * {x})",
    }
    return special[exponent]


POWERS = (0.5, -0.5, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0)
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LOGICAL = {"and": "&", "or": "|", "xor": "^"}

# Every argument arrives as a name or a number; the result is one expression.
RENDER: dict[str, Render] = {
    "add": _binary("+"),
    "sub": _binary("-"),
    "mul": _binary("*"),
    "div": lambda a, b: _div(a, b),
    **{name: _binary(symbol) for name, symbol in COMPARISONS.items()},
    **{name: _binary(symbol) for name, symbol in LOGICAL.items()},
    "not": lambda x: f"{x} == 0",
    "neg": lambda x: f"-{x}",
    "reciprocal": lambda x: f"1.0 / {x}",
    "square": lambda x: f"{x} * {x}",
    "abs": _call("tl.abs"),
    "exp": _call("tl.exp"),
    "expf": _call("_expf"),
    "exp2": _call("tl.exp2"),
    "log": _call("tl.log"),
    "log2": _call("tl.log2"),
    "log1p": _call("_log1p"),
    "expm1": _call("_expm1"),
    "sqrt": _call("tl.sqrt"),
    "root": _call("tl.sqrt"),  # of a norm or a deviation: another gradient at zero
    "rsqrt": lambda x: f"1.0 / tl.sqrt({x})",
    "sin": _call("tl.sin"),
    "cos": _call("tl.cos"),
    "erf": _call("tl.erf"),
    "floor": _call("tl.floor"),
    "ceil": _call("tl.ceil"),
    "tanh": _call("_tanh"),
    "cosh": _call("_cosh"),
    "sinh": _call("_sinh"),
    "sigmoid": _call("tl.sigmoid"),
    "pow": _power,
    "where": _call("tl.where"),
    "maximum": lambda a, b: f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": lambda a, b: f"tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "clamp": _clamp,
    "hardtanh": _clamp,  # another gradient at its bounds
    "raised": _clamp,  # no gradient of its own: that of the result is that of the argument
    "relu": lambda x: f"tl.where({x} < 0.0, 0.0, {x})",
    "leaky_relu": lambda x, slope: f"tl.where({x} > 0.0, {x}, {x} * {slope})",
    "threshold": lambda x, limit, value: f"tl.where({x} <= {limit}, {value}, {x})",
    "gelu": lambda x: f"0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))",
    "gelu_tanh": lambda x: (
        f"0.5 * {x} * (1.0 + _tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * {x})))"
    ),
    "silu": lambda x: f"{x} * tl.sigmoid({x})",
    "softplus": lambda x, beta, threshold: (
        f"tl.where({x} * {beta} > {threshold}, {x}, _softplus({x} * {beta}) / {beta})"
        if beta != "1.0"
        else f"tl.where({x} > {threshold}, {x}, _softplus({x}))"
    ),
    "log_sigmoid": lambda x: f"-_softplus(-{x})",
    # tanh(softplus(x)) = n / (n + 2) with n = e * (e + 2), e = exp(x); from x = 20 on it is 1.
    "mish_exp": lambda x: f"tl.exp(tl.minimum({x}, 20.0))",
    "mish": lambda x, e: f"{x} * ({e} * ({e} + 2.0)) / ({e} * ({e} + 2.0) + 2.0)",
    "elu": lambda x, alpha, scale, input_scale: _elu(x, alpha, scale, input_scale),
    "hardsigmoid": lambda x: _clamp(f"({x} + 3.0)", "0.0", "6.0") + " / 6.0",
    "hardswish": lambda x: f"{x} * " + _clamp(f"({x} + 3.0)", "0.0", "6.0") + " / 6.0",
    "softsign": lambda x: f"{x} / (1.0 + tl.abs({x}))",
    # 0 where x is, whatever the logarithm says, but for a NaN
    "xlogy": lambda x, y: f"tl.where(({x} == 0.0) & ({y} == {y}), 0.0, {x} * tl.log({y}))",
    # A logarithm of its own for each side; its gradient is torch's, not that of the clamped
    # logarithms.
    "bce": lambda x, y, low, rest: f"({y} - 1.0) * {rest} - {y} * {low}",
    "sign": lambda x: (
        f"tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, -1.0, 0.0))"
    ),  # 0 for NaN, as torch
    "isnan": lambda x: f"{x} != {x}",
    "to_float": lambda x: f"{x}.to(tl.float32)",
    "to_int64": lambda x: f"{x}.to(tl.int64)",
    "round_to_bfloat16": lambda x: f"{x}.to(tl.bfloat16).to(tl.float32)",
    "round_to_float16": lambda x: f"{x}.to(tl.float16).to(tl.float32)",
    "to_bool": lambda x: f"{x} != 0",
    "kept": lambda share, fours: f"_kept(quads, seed, turn, threads, {share}, {int(float(fours))})",
}


def _div(a: str, b: str) -> str:
    """By a constant as eager does on CUDA, which multiplies by the reciprocal: Triton's own
    division is off by two units in the last place, and large logits feel that."""
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", b) and 1e-30 < abs(float(b)) < 1e30:
        return f"{atom(a)} * (1.0 / {b})"
    return f"{atom(a)} / {atom(b)}"


def _elu(x: str, alpha: str, scale: str, input_scale: str) -> str:
    negative = _times(_times(f"_expm1({_times(x, input_scale)})", alpha), scale)
    return f"tl.where({x} > 0.0, {_times(x, scale)}, {negative})"


def _times(text: str, factor: str) -> str:
    return text if factor == "1.0" else f"{text} * {factor}"
