"""Cosine embedding loss in its parts, so that three sums over a row and what follows share one
pass.

The parts are those that torch computes it from. Covered: rows of one shape and dtype with one
target each, mean, sum and none; training. Not covered: vectors without a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core import fuse
from kernel_lsp.rewrite.codegen.pointwise.operations import FLOATS, WHOLE, op_name
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
MIN_SQUARED_LENGTH = 1e-12
"""What torch adds to the squared lengths."""


def matches(graph: Graph) -> list[Match]:
    found = [_match(graph, node) for node in graph.nodes if _is_covered(node)]
    return [match for match in found if match is not None]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    fused = _match_loss(graph, graph.named(match.data["nodes"][0]))
    if fused is None:
        raise RewriteError("the sums of the cosine embedding loss do not share a kernel")
    fuse.apply(graph, fused, choice)


def _is_covered(node: fx.Node) -> bool:
    if op_name(node) != "cosine_embedding_loss":
        return False
    left, right, target = (arg.meta["val"] for arg in node.args[:3])
    rows = left.dim() == 2 and left.numel() > 0 and left.shape == right.shape
    labels = target.dim() == 1 and target.dtype in (*FLOATS, *WHOLE)
    return bool(rows and labels and left.dtype == right.dtype and left.dtype in FLOATS)


def _match(graph: Graph, node: fx.Node) -> Match | None:
    copy = graph.copy()
    fused = _match_loss(copy, copy.named(node.name))
    if fused is None:
        return None
    return replace(
        fused,
        nodes=(node,),
        label=graph.label(node),
        summary="compute the cosines of an embedding loss and its margin in one pass",
        data={
            "nodes": [node.name],
            "parameters": fused.data["parameters"],
            "cosine_embedding": True,
        },
    )


def _match_loss(graph: Graph, loss: fx.Node) -> Match | None:
    """The loss in its parts, in this graph, and the match of all that belongs to a row."""
    first, rows = _written_out(graph, loss)
    found = fuse.reduction_matches(graph, ("sum",), alone=False)
    return next((match for match in found if first in match.nodes and rows in match.nodes), None)


def _written_out(graph: Graph, loss: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The first sum over the rows, and each row's loss. Columns of one element keep what belongs
    to a row together with what is summed."""
    left, right, target = loss.args[:3]

    def call(op: Any, *args: Any) -> fx.Node:
        return graph.call(op, args, before=loss)

    def dot(one: fx.Node, other: fx.Node) -> fx.Node:
        return call(aten.sum.dim_IntList, call(aten.mul.Tensor, one, other), [1], True)

    target = graph.call(aten.unsqueeze.default, (target, 1), before=loss, name="labels")
    product = dot(left, right)
    squares = [call(aten.add.Tensor, dot(side, side), MIN_SQUARED_LENGTH) for side in (left, right)]
    length = call(aten.sqrt.default, call(aten.mul.Tensor, *squares))
    cosine = call(aten.div.Tensor, product, length)
    near = call(aten.rsub.Scalar, cosine, 1)
    far = call(
        aten.clamp_min.default, call(aten.sub.Tensor, cosine, argument(loss, "margin", 0.0)), 0
    )
    kept = [
        call(aten.where.ScalarOther, call(aten.eq.Scalar, target, label), value, 0.0)
        for label, value in ((1, near), (-1, far))
    ]
    rows = call(aten.add.Tensor, *kept)
    reduce = {0: aten.flatten.using_ints, 1: aten.mean.default, 2: aten.sum.default}[
        argument(loss, "reduction", 1)
    ]
    graph.replace(loss, call(reduce, rows))
    return product, rows
