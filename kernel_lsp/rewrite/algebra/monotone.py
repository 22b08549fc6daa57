"""Which pointwise calls never decrease, and which are affine: those may be done after a reduction
instead.

`rising(graph, node)`: x <= y gives f(x) <= f(y) for all values the operand can have, NaN gives
NaN, and no other value does; so the largest result is the result of the largest. Bit for bit where
the device's function rises too (arithmetic, clamps); tanh and its kind may be off by their own
last bit. `affine(node)`: the tensor the call works on, and the number or tensor that is added or
multiplied. Not covered: decreasing functions, comparisons, casts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from kernel_lsp.rewrite.facts.transfer_functions import clamp_bounds
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
CLAMPS = (aten.clamp, aten.clip, aten.hardtanh, aten.relu6, aten.clamp_min, aten.clamp_max)
RISING = (
    aten.relu, aten.tanh, aten.sigmoid, aten.hardsigmoid, aten.selu, aten.exp, aten.expm1, aten.erf,
    aten.atan, aten.log_sigmoid, aten.floor, aten.ceil, aten.trunc,
)  # fmt: skip
RISING_ABOVE_ZERO = (aten.sqrt, aten.square, aten.abs, aten.log1p)


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """x multiplied or divided by something, or something added or subtracted."""

    value: fx.Node
    kind: Literal["mul", "div", "add", "sub"]
    other: Any
    """A number or a node."""


def affine(node: Any) -> Affine | None:
    """The tensor of the result's own shape is the value; the other operand is a number or
    broadcast."""
    if not is_op(node, aten.mul, aten.div, aten.add, aten.sub) or argument(
        node, "alpha", 1
    ) not in (None, 1):
        return None
    if argument(node, "rounding_mode") is not None or len(node.args) != 2:
        return None
    kind = node.target._opname
    out = node.meta["val"]
    left, right = node.args
    if _whole(left, out) and not _whole(right, out):
        return Affine(value=left, kind=kind, other=right) if _number_or_node(right) else None
    if kind in ("mul", "add") and _whole(right, out) and not _whole(left, out):
        return Affine(value=right, kind=kind, other=left) if _number_or_node(left) else None
    return None


def _whole(value: Any, out: Any) -> bool:
    return (
        isinstance(value, fx.Node)
        and isinstance(value.meta.get("val"), torch.Tensor)
        and value.meta["val"].shape == out.shape
        and value.meta["val"].dtype == out.dtype
    )


def _number_or_node(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return isinstance(value.meta.get("val"), torch.Tensor)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def rising(graph: Graph, node: Any) -> bool:
    """Whether the call is a rising function of its first argument (see the top of the file). Calls
    with a second tensor are for `affine` and the caller to judge."""
    if not isinstance(node, fx.Node) or not graph.fact(node).floating:
        return False
    if is_op(node, *RISING):
        return True
    if is_op(node, *CLAMPS):
        bounds = clamp_bounds(graph.fact(node).dtype, lambda name: argument(node, name))
        return bounds is not None and bounds[0] <= bounds[1]
    if is_op(node, *RISING_ABOVE_ZERO):
        return graph.fact(node.args[0]).lo >= 0
    if is_op(node, aten.leaky_relu):
        return bool(argument(node, "negative_slope") > 0)
    if is_op(node, aten.softplus):
        return bool(argument(node, "beta") > 0)
    if is_op(node, aten.elu):
        return all(argument(node, name) > 0 for name in ("alpha", "scale", "input_scale"))
    return is_op(node, aten.celu) and bool(argument(node, "alpha") > 0)
