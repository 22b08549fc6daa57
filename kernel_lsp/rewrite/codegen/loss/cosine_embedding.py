"""Cosine embedding loss in its parts, so that three sums over a row and what follows share one
pass.

The parts are those that torch computes it from. Covered: rows of one shape and dtype with one
target each, mean, sum and none; training. Not covered: vectors without a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, WHOLE, op_name
from kernel_lsp.rewrite.codegen.loss import in_parts
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
MIN_SQUARED_LENGTH = 1e-12
"""What torch adds to the squared lengths."""


SUMMARY = "compute the cosines of an embedding loss and its margin in one pass"


def matches(graph: Graph) -> list[Match]:
    """Cosine embedding losses whose parts would share a kernel."""
    covered = [node for node in graph.nodes if _is_covered(node)]
    found = [
        in_parts.match(graph, node, _written_out, "cosine_embedding", SUMMARY) for node in covered
    ]
    return [match for match in found if match is not None]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts that kernel in the loss's place."""
    in_parts.apply(graph, match, choice, _written_out)


def _is_covered(node: fx.Node) -> bool:
    if op_name(node) != "cosine_embedding_loss":
        return False
    left, right, target = (arg.meta["val"] for arg in node.args[:3])
    rows = left.dim() == 2 and left.numel() > 0 and left.shape == right.shape
    labels = target.dim() == 1 and target.dtype in (*FLOATS, *WHOLE)
    return bool(rows and labels and left.dtype == right.dtype and left.dtype in FLOATS)


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
