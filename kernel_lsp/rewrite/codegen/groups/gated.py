"""F.glu in its parts, so that it shares a kernel with what is computed from it.

`written_out(graph)` is a copy of the graph in which each glu is a product of one half and the
sigmoid of the other; `write_out(graph, names)` does it in place for some of them. The parts' names
follow from glu's, so what was found in the copy is found again in the graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten


def gates(graph: Graph) -> list[str]:
    """Names of the nodes that are F.glu."""
    return [node.name for node in graph.nodes if op_name(node) == "glu"]


def written_out(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The copy, and for each part that computes something the name of its glu."""
    copy = graph.copy()
    return copy, write_out(copy, gates(graph))


def write_out(graph: Graph, names: Iterable[str]) -> dict[str, str]:
    """Write each of these F.glu in its parts into the graph: name of a part -> name of its
    F.glu."""
    parts: dict[str, str] = {}
    for name in names:
        gate, product = _parts(graph, graph.named(name))
        parts |= {gate.name: name, product.name: name}
    return parts


def _parts(graph: Graph, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    seconds = cost.eager_seconds(graph, node)
    halves = graph.call(
        aten.chunk.default, (node.args[0], 2, argument(node, "dim", -1)), before=node
    )
    left, right = (graph.call(operator.getitem, (halves, index), before=node) for index in (0, 1))
    gate = graph.call(aten.sigmoid.default, (right,), before=node, name=f"{node.name}_gate")
    product = graph.call(aten.mul.Tensor, (left, gate), before=node, name=f"{node.name}_product")
    # Eager computes both in one pass.
    gate.meta["eager_seconds"], product.meta["eager_seconds"] = 0.0, seconds
    graph.replace(node, product)
    return gate, product
