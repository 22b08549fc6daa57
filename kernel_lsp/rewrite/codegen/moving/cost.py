"""What eager takes for pointwise operations and moves, forward and backward.

Beside what each operation moves, the backward of a slice writes a tensor full of zeros and copies
into it, and the gradients of a tensor that is read k times are added k - 1 times."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from kernel_lsp.rewrite.codegen.core import cost
from kernel_lsp.rewrite.codegen.moving import operations
from kernel_lsp.rewrite.graph import Graph

SLICES = ("slice", "select", "narrow")
JOINED = ("cat", "concat", "concatenate", "stack", "pad", "constant_pad_nd")
"""Their gradients are views."""


def eager_seconds(
    graph: Graph, own: Sequence[fx.Node], nodes: Sequence[fx.Node], is_trained: bool
) -> float:
    """Of the nodes that a kernel replaces; ``nodes`` with the views that it reads through."""
    seconds = sum(_forward(graph, node) for node in own)
    if not is_trained:
        return seconds
    seconds += sum(_backward(graph, node) for node in nodes)
    return seconds + _accumulation(graph, nodes)


def _forward(graph: Graph, node: fx.Node) -> float:
    name = operations.name_of(node)
    moves = name in operations.BUILDERS or name == "contiguous"
    if moves and operations.is_view(node):
        return 0.0
    if not moves:
        return cost.eager_seconds(graph, node)
    speed = cost.rates(graph)
    moved = sum(min(cost.bytes_of(arg), cost.bytes_of(node)) for arg in operations.sources(node))
    again = cost.bytes_of(node) if name == "pad" else 0  # filled, then copied into
    return (moved + cost.bytes_of(node) + again) / speed.bytes_per_s + speed.overhead_s


def _backward(graph: Graph, node: fx.Node) -> float:
    if not graph.carries(node):
        return 0.0
    name, speed = operations.name_of(node), cost.rates(graph)
    if name in SLICES:
        whole = cost.bytes_of(operations.sources(node)[0])
        return (whole + 2 * cost.bytes_of(node)) / speed.bytes_per_s + 2 * speed.overhead_s
    if name in JOINED or name == "contiguous":
        return 0.0
    if name in operations.BUILDERS:
        copies = not operations.is_view(node) or name == "expand"
        moved = cost.bytes_of(node) + cost.bytes_of(operations.sources(node)[0])
        return moved / speed.bytes_per_s + speed.overhead_s if copies else 0.0
    return cost.trained_seconds(graph, node) - cost.eager_seconds(graph, node)


def _accumulation(graph: Graph, nodes: Sequence[fx.Node]) -> float:
    inside, speed = set(nodes), cost.rates(graph)
    read = dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes)
    seconds = 0.0
    for arg in read:
        users = sum(user in inside for user in arg.users)
        parts = any(operations.is_part(user) for user in arg.users)
        if users > 1 and not parts and graph.carries(arg):
            each = 3 * cost.bytes_of(arg) / speed.bytes_per_s + speed.overhead_s
            seconds += (users - 1) * each
    return seconds
