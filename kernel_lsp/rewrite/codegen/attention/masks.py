"""Masks of attention that are known without being read: triangles over queries and keys.

Covered: triu and tril of ones or of -inf made in the same call, comparisons of two ranges, zeros
that are filled along such a triangle, negations and views of them. A buffer or an argument may
hold anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import argument_nodes, op_name
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.graph import Graph, argument

VIEWS = ("unsqueeze", "view", "reshape", "expand", "alias", "detach", "contiguous", "clone")


@dataclass(frozen=True, kw_only=True, slots=True)
class Triangle:
    """``value`` where key >= query + distance (``upper``), or else where key < query + distance;
    else 0."""

    distance: int
    upper: bool
    value: float = 1.0


def triangle_of(graph: Graph, node: fx.Node) -> Triangle | None:
    """The triangle over queries and keys that the node's value is; None: it is none, or not known
    without being read."""
    name = op_name(node)
    if name in ("bitwise_not", "logical_not"):
        inner = triangle_of(graph, node.args[0])
        is_plain = node.args[0].meta["val"].dtype == torch.bool
        return replace(inner, upper=not inner.upper) if inner is not None and is_plain else None
    if name in ("eq", "ne"):
        return _compared_with_zero(graph, node)
    if name in (*VIEWS, "to", "_to_copy", "slice") and _same_matrix(node):
        return _read_conversion(triangle_of(graph, node.args[0]), node)
    if name in ("gt", "ge", "lt", "le"):
        return _read_comparison(node)
    if name == "masked_fill":
        return _filled_zeros(graph, node)
    return _half_of_constant(graph, node) if name in ("triu", "tril") else None


def _compared_with_zero(graph: Graph, node: fx.Node) -> Triangle | None:
    """What is 0 is what lies outside."""
    if not isinstance(node.args[1], (int, float)) or node.args[1] != 0:
        return None
    inner = triangle_of(graph, node.args[0])
    if inner is None:
        return None
    return replace(inner, upper=inner.upper is (op_name(node) == "ne"), value=1.0)


def _half_of_constant(graph: Graph, node: fx.Node) -> Triangle | None:
    value = _constant(graph, node.args[0]) if node.meta["val"].dim() == 2 else None
    if value is None or value not in (1.0, -math.inf):
        return None
    diagonal, upper = int(argument(node, "diagonal", 0)), op_name(node) == "triu"
    return Triangle(distance=diagonal if upper else diagonal + 1, upper=upper, value=value)


def _same_matrix(node: fx.Node) -> bool:
    """The view has the same last two dimensions, and ones before."""
    shape, base = tuple(node.meta["val"].shape), tuple(node.args[0].meta["val"].shape)
    return (
        len(base) >= 2
        and shape[-2:] == base[-2:]
        and math.prod(shape[:-2]) == math.prod(base[:-2]) == 1
    )


def _read_conversion(inner: Triangle | None, node: fx.Node) -> Triangle | None:
    """Ones and zeros stay what they are in any type; -inf in floating types alone."""
    dtype = node.meta["val"].dtype
    fits = dtype.is_floating_point or inner is None or inner.value == 1.0
    return inner if fits else None


def _constant(graph: Graph, node: fx.Node) -> float | None:
    """Of every element. What is proved about values has no infinite constants."""
    if op_name(node) in ("full", "new_full", "full_like"):
        value = argument(node, "fill_value")
        return float(value) if isinstance(value, (int, float)) else None
    if op_name(node) in ("to", "_to_copy"):
        found = _constant(graph, node.args[0])
        return found if found in (0.0, 1.0) or node.meta["val"].dtype.is_floating_point else None
    return graph.fact(node).const


def _filled_zeros(graph: Graph, node: fx.Node) -> Triangle | None:
    mask, number = argument(node, "mask"), argument(node, "value")
    inner = triangle_of(graph, mask)
    square = inner is not None and mask.meta["val"].shape == node.meta["val"].shape
    if not square or inner is None or not isinstance(number, (int, float)):
        return None
    zeros = _constant(graph, node.args[0]) == 0.0
    return replace(inner, value=float(number)) if zeros and inner.value == 1.0 else None


# --- comparisons of ranges ---------------------------------------------------------------


def _read_comparison(node: fx.Node) -> Triangle | None:
    """``keys[None, :] > queries[:, None]`` where both count up by one."""
    sides = [_read_count(arg) for arg in node.args[:2]]
    if node.meta["val"].dim() < 2 or math.prod(node.meta["val"].shape[:-2]) != 1:
        return None
    if None in sides or {axis for axis, _ in sides if sides} != {-1, -2}:  # type: ignore[misc]
        return None
    (axis, first), (_, second) = sides  # type: ignore[misc]
    name = op_name(node)
    if axis == -2:  # query > key is key < query
        name = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}[name]
        first, second = second, first
    distance = second - first + (name in ("gt", "le"))
    return Triangle(distance=distance, upper=name in ("gt", "ge"))


def _read_count(node: Any) -> tuple[int, int] | None:
    """The axis from the end along which a tensor is start, start + 1, ..., and the start."""
    if not isinstance(node, fx.Node):
        return None
    shape = tuple(node.meta["val"].shape)
    while op_name(node) in (*VIEWS, "slice") and _same_count(node):
        node = node.args[0]
    if op_name(node) != "arange" or node.meta["val"].dtype not in (torch.int64, torch.int32):
        return None
    start, step = argument(node, "start", 0), argument(node, "step", 1)
    long = [axis for axis, size in zip(range(-len(shape), 0), shape, strict=True) if size != 1]
    return (
        (long[0], int(start)) if step == 1 and isinstance(start, int) and len(long) == 1 else None
    )


def _same_count(node: fx.Node) -> bool:
    return bool(node.meta["val"].numel() == node.args[0].meta["val"].numel())


# --- what they hide ----------------------------------------------------------------------


def end_of(root: fx.Node, triangles: dict[fx.Node, Triangle], softmax: bool) -> int | None:
    """The distance from which on the chain yields -inf (0 without softmax) whatever the scores
    are."""
    later, node = [], root
    while (filled := _fills(node, triangles)) is None:
        if softmax and _hides_more(node):  # what is -inf stays so
            node = node.args[0]
            continue
        tensors = argument_nodes(node)
        if len(tensors) != 1 or not chain.fuses(node, root.meta["val"].shape):
            return None
        later.append(node)
        node = tensors[0][1]
    value = torch.tensor(float(filled[1]))
    for step in reversed(later):
        args = [value if isinstance(arg, fx.Node) else arg for arg in step.args]
        value = step.target(*args, **step.kwargs)
    gone = float(value) == (-math.inf if softmax else 0.0)
    # A row without any key is NaN under softmax: the first one must keep a key.
    return filled[0] if gone and (filled[0] >= 1 or not softmax) else None


def _hides_more(node: fx.Node) -> bool:
    """Fills with -inf by a mask of unknown values, as for padding."""
    return op_name(node) == "masked_fill" and argument(node, "value") == -math.inf


def _fills(node: fx.Node, triangles: dict[fx.Node, Triangle]) -> tuple[int, float] | None:
    """(distance, number) when everything from query + distance on becomes the number."""
    name, upper = op_name(node), True
    if name == "add":
        mask = next((n for _, n in argument_nodes(node) if n in triangles), None)
        plain = (
            argument(node, "alpha", 1) == 1
            and mask is not None
            and triangles[mask].value == -math.inf
        )
        number: Any = -math.inf if plain else None
    elif name == "masked_fill":
        mask, number = argument(node, "mask"), argument(node, "value")
    elif name == "where":
        mask, number, upper = argument(node, "condition"), argument(node, "other"), False
    else:
        return None
    if (
        mask not in triangles
        or triangles[mask].upper is not upper
        or not isinstance(number, (int, float))
    ):
        return None
    return triangles[mask].distance, float(number)
