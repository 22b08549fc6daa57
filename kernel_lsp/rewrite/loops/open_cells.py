"""Recurrent cells as the operations that they are made of, so that products of their inputs can go
elsewhere.

`open_cells(graph, loop) -> tuple[fx.Node, …]`, in place, for the cells of one loop;
`can_open(graph, node)`. On a GPU a GRU's or an LSTM's cell is two products and one kernel of
torch's own, which is called with the same products here; an RNN's cell is two linear layers, their
sum and its activation everywhere. Not covered: GRU and LSTM on a CPU, where there is no such
kernel."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.capture import read_conditions
from kernel_lsp.rewrite.capture.observing import module_path
from kernel_lsp.rewrite.graph import Graph, is_op
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop

aten = torch.ops.aten
ACTIVATIONS = {aten.rnn_tanh_cell: aten.tanh.default, aten.rnn_relu_cell: aten.relu.default}
FUSED = {
    aten.gru_cell: aten._thnn_fused_gru_cell.default,
    aten.lstm_cell: aten._thnn_fused_lstm_cell.default,
}
"""A cell -> the kernel that torch runs behind its two products on a GPU. It has a derivative."""
WORKSPACE = {aten.gru_cell: 5, aten.lstm_cell: 4}
"""Rows of states that the kernel leaves for its derivative."""


def can_open(graph: Graph, node: fx.Node) -> bool:
    """One of the cells, with both biases or none."""
    known = is_op(node, *ACTIVATIONS) or (is_op(node, *FUSED) and graph.device == "cuda")
    return known and not node.kwargs and len(_weights(node)) in (2, 4)


def is_fused_cell(node: fx.Node) -> bool:
    """Whether the node is a cell that torch runs as one operation."""
    return node.target in FUSED.values()


def open_cells(graph: Graph, loop: UnrolledLoop) -> tuple[fx.Node, ...]:
    """What stands for the cells now: the last operation of each."""
    return tuple(_open_cell(graph, node) for node in loop.nodes if can_open(graph, node))


def require_kind(graph: Graph, node: fx.Node) -> None:
    """What else of the layer decides how it computes, beside its type, its weights' shapes and its
    hooks."""
    if (path := module_path(node)) is None:
        return
    source = read_conditions.self_path(path)
    if is_op(node, *ACTIVATIONS):
        kind = "tanh" if is_op(node, aten.rnn_tanh_cell) else "relu"
        graph.require(f'{source}.nonlinearity == "{kind}"', "another one is another function")
    has = "is not None" if len(_weights(node)) == 4 else "is None"
    for bias in ("bias_ih", "bias_hh"):
        graph.require(f"{source}.{bias} {has}", "both biases are added, or none is")


def _weights(node: fx.Node) -> list[fx.Node]:
    return [item for item in node.args[2:] if item is not None]


def _open_cell(graph: Graph, node: fx.Node) -> fx.Node:
    given, held = node.args[:2]
    of_input, of_state, *biases = _weights(node)
    if is_op(node, *ACTIVATIONS):
        one = graph.call(aten.linear.default, (given, of_input, *biases[:1]), before=node)
        other = graph.call(aten.linear.default, (held, of_state, *biases[1:]), before=node)
        both = graph.call(aten.add.Tensor, (one, other), before=node)
        made = graph.call(
            next(act for op, act in ACTIVATIONS.items() if is_op(node, op)), (both,), before=node
        )
    else:
        made = _fuse_cell(graph, node, given, held, [of_input, of_state], biases)
    made.meta["replaces"] = node.name  # and is called like it
    for part in node.users:
        if part.target is operator.getitem:
            part.meta = {**part.meta, "name": "hc"[part.args[1]]}
    node.replace_all_uses_with(made)
    graph.fx.erase_node(node)
    return made


def _fuse_cell(
    graph: Graph,
    node: fx.Node,
    given: fx.Node,
    held: Any,
    weights: list[fx.Node],
    biases: list[fx.Node],
) -> fx.Node:
    """Two products and the kernel. Its values are made here: it runs on no fake tensor of a CPU."""
    state, memory = held if isinstance(held, (list, tuple)) else (held, held)
    sides = [
        graph.call(aten.linear.default, pair, before=node)
        for pair in zip((given, state), weights, strict=True)
    ]
    op = next(op for op in FUSED if is_op(node, op))
    with graph.fx.inserting_before(node):
        fused = graph.fx.create_node("call_function", FUSED[op], (*sides, memory, *biases), {})
    value = graph.val(node)
    states = value if isinstance(value, (list, tuple)) else (value,)
    rows, width = states[0].shape
    fused.meta["name"] = "results"
    fused.meta["val"] = (*states, states[0].new_empty(rows, WORKSPACE[op] * width))
    if op is aten.lstm_cell:
        return fused  # its first two results are those of the cell
    return graph.call(operator.getitem, (fused, 0), before=node)
