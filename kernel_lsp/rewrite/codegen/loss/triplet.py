"""Triplet margin loss in its parts, so that both distances and the margin share one pass over the
rows.

Covered: rows of one shape and dtype, the 1- and the 2-norm, mean, sum and none. Not covered:
``swap``, which needs a third distance; training."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core import cost, fuse
from kernel_lsp.rewrite.codegen.pointwise.operations import FLOATS, op_name
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
PARAMETERS: dict[str, list[Any]] = {"num_warps": [16, 8, 4]}


def matches(graph: Graph) -> list[Match]:
    return [_match(graph, node) for node in graph.nodes if _is_covered(graph, node)]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """margin + |a - p| - |a - n|, clamped at zero, in the parts that eager computes it from."""
    loss = graph.named(match.data["nodes"][0])
    anchor, near, far = loss.args[:3]
    settings = (argument(loss, "p", 2.0), argument(loss, "eps", 1e-6))
    distances = [
        graph.call(aten.pairwise_distance.default, (anchor, other, *settings), before=loss)
        for other in (near, far)
    ]
    wider = graph.call(aten.add.Tensor, (distances[0], argument(loss, "margin", 1.0)), before=loss)
    hinge = graph.call(aten.sub.Tensor, (wider, distances[1]), before=loss)
    hinge = graph.call(aten.clamp_min.default, (hinge, 0), before=loss)
    reduce = {0: None, 1: aten.mean.default, 2: aten.sum.default}[argument(loss, "reduction", 1)]
    result = hinge if reduce is None else graph.call(reduce, (hinge,), before=loss)
    graph.replace(loss, result)
    fused = [
        m for m in fuse.reduction_matches(graph, ("pairwise_distance",)) if distances[0] in m.nodes
    ]
    if not fused:
        raise RewriteError("the distances of the triplet loss do not share a kernel")
    fuse.apply(graph, fused[0], choice)


def _is_covered(graph: Graph, node: fx.Node) -> bool:
    if op_name(node) != "triplet_margin_loss" or graph.gradients or argument(node, "swap", False):
        return False
    values = [arg.meta["val"] for arg in node.args[:3]]
    first = values[0]
    alike = all(value.shape == first.shape and value.dtype == first.dtype for value in values)
    plain = first.dtype in FLOATS and first.dim() == 2 and first.numel() > 0
    return bool(alike and plain and argument(node, "p", 2.0) in (1, 2))


def _match(graph: Graph, node: fx.Node) -> Match:
    fused_s = cost.read_once_seconds(graph, node.all_input_nodes, launches=2)
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary="compute both distances of a triplet loss and its margin in one pass",
        benefit=cost.benefit(graph, [node], fused_s, 0.1),
        plain=False,
        data={"nodes": [node.name], "parameters": PARAMETERS, "triplet": True},
    )
