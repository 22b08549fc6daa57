"""What eager takes for pointwise operations and moves, forward and backward.

Beside what each operation moves, the backward of a slice writes a tensor full of zeros and copies
into it, the gradients of a tensor that is read k times are added k - 1 times, and a roll over
several dimensions rolls one after the other. Several slices of one tensor in one operation are
read from memory once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from kernel_lsp.rewrite.codegen.moving import complex_numbers, operations
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.graph import Graph, argument

SLICES = ("slice", "select", "narrow")
JOINED = ("cat", "concat", "concatenate", "stack")
"""Their gradients are views."""
SCATTERED = 2.0
"""Times longer than by its bytes a copy between layouts takes in eager. A step of repeated heads took
0.114 ms on an H100 where bytes take 0.055, of patches 0.070 where they take 0.025."""


def eager_seconds(
    graph: Graph, own: Sequence[fx.Node], nodes: Sequence[fx.Node], is_trained: bool
) -> float:
    """Seconds that eager takes for the nodes that a kernel replaces (``own``), with their backward
    where that is trained; ``nodes``: with the views that the kernel reads through."""
    seconds = sum(_forward(graph, node) for node in own)
    if not is_trained:
        return seconds
    seconds += sum(_backward(graph, node) for node in nodes)
    return seconds + _accumulation(graph, nodes)


def _forward(graph: Graph, node: fx.Node) -> float:
    name = operations.name_of(node)
    moves = name in operations.BUILDERS or name == "contiguous"
    if name in complex_numbers.VIEWS or (moves and operations.is_view(node)):
        return 0.0
    speed = cost.rates(graph)
    if not moves:
        return cost.eager_seconds(graph, node) - _read_again(node) / speed.bytes_per_s
    moved = sum(min(cost.bytes_of(arg), cost.bytes_of(node)) for arg in operations.sources(node))
    again = cost.bytes_of(node) if name == "pad" else 0  # filled, then copied into
    slower = 1.0 if name in (*JOINED, "pad") else SCATTERED
    each = slower * (moved + cost.bytes_of(node) + again) / speed.bytes_per_s + speed.overhead_s
    return each * _passes(node)


def _passes(node: fx.Node) -> int:
    dims = argument(node, "dims") if operations.name_of(node) == "roll" else None
    return max(1, len(dims)) if isinstance(dims, (list, tuple)) else 1


def _read_again(node: fx.Node) -> int:
    """Bytes of what lies in a tensor that the operation has read already."""
    found, again = dict[fx.Node, int](), 0
    for arg in node.all_input_nodes:
        size, base = cost.bytes_of(arg), _behind_slices(arg)
        again += max(0, min(size, found.get(base, 0) + size - cost.bytes_of(base)))
        found[base] = found.get(base, 0) + size
    return again


def _behind_slices(node: fx.Node) -> fx.Node:
    while operations.name_of(node) in (*SLICES, "part"):
        (node,) = operations.sources(node)
    return node


def _backward(graph: Graph, node: fx.Node) -> float:
    if not graph.carries(node):
        return 0.0
    name, speed = operations.name_of(node), cost.rates(graph)
    if name in SLICES:
        whole = cost.bytes_of(operations.sources(node)[0])
        return (whole + 2 * cost.bytes_of(node)) / speed.bytes_per_s + 2 * speed.overhead_s
    if name in JOINED or name in complex_numbers.VIEWS:
        return 0.0
    if name in (*operations.RESHAPES, "contiguous"):
        # Handed on as a view, and copied where it ends.
        copied = 0 if operations.is_view(node) else 2 * cost.bytes_of(node)
        return SCATTERED * copied / speed.bytes_per_s
    if name in operations.BUILDERS:
        copies = not operations.is_view(node) or name == "expand"
        moved = cost.bytes_of(node) + cost.bytes_of(operations.sources(node)[0])
        each = moved / speed.bytes_per_s + speed.overhead_s
        return each * _passes(node) if copies else 0.0
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
