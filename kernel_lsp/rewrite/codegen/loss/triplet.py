"""Triplet margin loss in its parts, so that both distances and the margin share one pass over the
rows.

Covered: rows of one shape and dtype, the 1- and the 2-norm, mean, sum and none; training. Not
covered: ``swap``, which needs a third distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.loss import in_parts
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
SUMMARY = "compute both distances of a triplet loss and its margin in one pass"


def matches(graph: Graph) -> list[Match]:
    """Triplet margin losses whose parts would share a kernel."""
    covered = [node for node in graph.nodes if _is_covered(node)]
    found = [in_parts.match(graph, node, _written_out, "triplet", SUMMARY) for node in covered]
    return [match for match in found if match is not None]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts that kernel in the loss's place."""
    in_parts.apply(graph, match, choice, _written_out)


def _is_covered(node: fx.Node) -> bool:
    if op_name(node) != "triplet_margin_loss" or argument(node, "swap", False):
        return False
    values = [arg.meta["val"] for arg in node.args[:3]]
    first = values[0]
    alike = all(value.shape == first.shape and value.dtype == first.dtype for value in values)
    plain = first.dtype in FLOATS and first.dim() == 2 and first.numel() > 0
    return bool(alike and plain and argument(node, "p", 2.0) in (1, 2))


def _written_out(graph: Graph, loss: fx.Node) -> tuple[fx.Node, fx.Node]:
    """margin + |a - p| - |a - n|, clamped at zero, in the parts that eager computes it from."""
    anchor, near, far = loss.args[:3]
    settings = (argument(loss, "p", 2.0), argument(loss, "eps", 1e-6))

    def call(op: Any, *args: Any) -> fx.Node:
        return graph.call(op, args, before=loss)

    def distance(one: Any, other: Any) -> fx.Node:
        return call(aten.pairwise_distance.default, one, other, *settings)

    to_near, to_far = distance(anchor, near), distance(anchor, far)
    wider = call(aten.add.Tensor, to_near, argument(loss, "margin", 1.0))
    hinge = call(aten.clamp_min.default, call(aten.sub.Tensor, wider, to_far), 0)
    reduce = {0: None, 1: aten.mean.default, 2: aten.sum.default}[argument(loss, "reduction", 1)]
    graph.replace(loss, hinge if reduce is None else call(reduce, hinge))
    return to_near, hinge
