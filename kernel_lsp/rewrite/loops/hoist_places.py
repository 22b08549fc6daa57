"""Products of a loop's step that contain one of a slice with a weight: what is one product for all
steps.

`places_of(graph, loop) -> dict[int, Place]`: a linear layer of a slice, `slice @ weight`, and a
linear layer of a concatenation of which the slice is one end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, is_op
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop
from kernel_lsp.rewrite.loops.walks import SliceWalk

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class HoistPlace:
    """A product of a step that contains one of a slice (``walk``) with a weight that no step
    changes."""

    walk: SliceWalk
    joined: fx.Node | None = None
    """The concatenation of which the slice is one end; None where it is the slice alone."""
    columns: tuple[int, int] = (0, 0)
    """The weight's columns for the slice."""
    rest: tuple[int, int] = (0, 0)
    """The columns for what is beside it."""


def places_of(graph: Graph, loop: UnrolledLoop) -> dict[int, HoistPlace]:
    """Number of an operation -> what of it can be one product for all steps; without those of which
    nothing can."""
    walked = {node: walk for walk in loop.walks for node in walk.slices[1]}
    changing = {*loop.steps[0], *loop.steps[1], *walked}
    found = {}
    for index, node in enumerate(loop.steps[1]):
        if not _is_product(graph, node) or any(arg in changing for arg in node.args[1:]):
            continue
        if node.args[0] in walked:
            found[index] = HoistPlace(walk=walked[node.args[0]])
        elif (place := _join_linear(graph, loop, node, walked)) is not None:
            found[index] = place
    inside = {loop.steps[1][index] for index in found}
    return {index: place for index, place in found.items() if _may_open(place, inside)}


def _may_open(place: HoistPlace, inside: set[fx.Node]) -> bool:
    """Nothing is joined there, or products alone read what is."""
    return place.joined is None or set(place.joined.users) <= inside


def _is_product(graph: Graph, node: fx.Node) -> bool:
    """A linear layer, or a product with a matrix from the right: each row of the input on its
    own."""
    if is_op(node, aten.linear):
        return True
    return is_op(node, aten.matmul, aten.mm) and graph.val(node.args[1]).dim() == 2


def _join_linear(
    graph: Graph, loop: UnrolledLoop, node: fx.Node, walked: dict[fx.Node, SliceWalk]
) -> HoistPlace | None:
    """A linear layer of a slice and what stands beside it, concatenated along the features."""
    given = node.args[0]
    if not is_op(node, aten.linear) or not is_op(given, aten.cat) or given not in loop.steps[1]:
        return None
    parts, dim, rank = given.args[0], (*given.args, 0)[1], graph.val(given).dim()
    if dim % rank != rank - 1 or [part in walked for part in parts].count(True) != 1:
        return None
    whole, own = (
        graph.val(item).shape[-1] for item in (given, next(p for p in parts if p in walked))
    )
    if parts[0] in walked:
        return HoistPlace(walk=walked[parts[0]], joined=given, columns=(0, own), rest=(own, whole))
    if parts[-1] in walked:
        columns, rest = (whole - own, whole), (0, whole - own)
        return HoistPlace(walk=walked[parts[-1]], joined=given, columns=columns, rest=rest)
    return None
