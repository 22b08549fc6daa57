"""Loops over torch's recurrent cells whose steps hold nothing that depends on a state but these
cells.

`cell_loops(graph) -> list[CellLoop]`. Each cell of a step (`nn.LSTMCell`, `GRUCell`, `RNNCell`;
one or several upon each other) hands its own state to itself in the next step; everything else of
the step is known for all steps at once, before the cells or behind them (spreading.py). Not
covered: a state that anything else reads before the cell does (masks, attention, the output as the
next input), and the memory of an LSTM where more of it is read than the last step's."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.recurrence.spreading import spreads
from kernel_lsp.rewrite.graph import Graph, is_op
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, loops_of

aten = torch.ops.aten
LAYERS = {
    aten.lstm_cell: "lstm", aten.gru_cell: "gru", aten.rnn_tanh_cell: "rnn_tanh",
    aten.rnn_relu_cell: "rnn_relu",
}  # fmt: skip
"""A cell -> the library's function for all steps: the same equations and the same layout of
weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentCell:
    """One cell of a step, and where its states are among the operations of the step."""

    node: fx.Node
    layer: str
    weights: tuple[fx.Node, ...]
    """Of the input, of the state; then their biases, or nothing."""
    states: tuple[int, ...]
    """Operations that yield the new state, and of an LSTM its new memory."""
    initial: tuple[fx.Node, ...]
    """What stands for them before the first step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellLoop:
    loop: UnrolledLoop
    cells: tuple[RecurrentCell, ...]
    """In the order of a step."""
    spread: tuple[fx.Node, ...]
    """Other operations of step 1, in order."""
    dim: int
    """Where the steps lie in the tensors of all steps."""

    def label(self, graph: Graph) -> str:
        """How a person would name the loop: by its first cell and its last step."""
        return graph.label(self.cells[0].node, self.loop.steps[-1][-1])


def is_cell(node: fx.Node) -> bool:
    """Whether the node is one of torch's recurrent cells."""
    return is_op(node, *LAYERS)


def complete(graph: Graph) -> None:
    """Adds, in place, both results of every LSTM cell. The last memory is mostly read by nobody,
    and a last step with one operation less would not be one of the loop."""
    for node in graph.nodes:
        if is_op(node, aten.lstm_cell):
            parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
            if 0 in parts and 1 not in parts:
                graph.call(operator.getitem, (node, 1), before=parts[0].next)
            elif 1 in parts and 0 not in parts:
                graph.call(operator.getitem, (node, 0), before=parts[1])


def cell_loops(graph: Graph) -> list[CellLoop]:
    """All loops over torch's cells, of a graph that may get more nodes by it."""
    complete(graph)
    return [found for loop in loops_of(graph) if (found := cells_of(graph, loop)) is not None]


def cells_of(graph: Graph, loop: UnrolledLoop) -> CellLoop | None:
    """The cells of a loop and their inputs, with the steps in the dimension in which the program
    has them, where its operations allow that; None: its steps are no cells."""
    if not any(is_cell(node) for node in loop.steps[1]):
        return None
    for dim in loop.dims:
        if (found := _describe_loop(graph, loop, dim)) is not None:
            return found
    return None


@dataclass(slots=True)
class _StepSoFar:
    """The operations of step 1 up to one of them."""

    every: set[fx.Node]
    """What is known for all steps."""
    changing: set[fx.Node]
    """What is another value in each step."""
    memories: set[fx.Node]
    """Of LSTMs: the last step's alone."""
    cells: list[RecurrentCell]
    spread: list[fx.Node]


def _describe_loop(graph: Graph, loop: UnrolledLoop, dim: int) -> CellLoop | None:
    step = loop.steps[1]
    every = {node for walk in loop.walks for node in walk.slices[1]}
    sofar = _StepSoFar(every, {*every, *step, *loop.steps[0]}, set(), [], [])
    for node in step:
        if is_cell(node):
            if (cell := _cell(graph, loop, node, sofar)) is None:
                return None
            sofar.cells.append(cell)
            sofar.every.add(step[cell.states[0]])
            sofar.memories.update(step[index] for index in cell.states[1:])
        elif node in sofar.every or node in sofar.memories:
            continue  # a part of a cell's results
        elif spreads(graph, node, sofar.every, sofar.changing, dim):
            sofar.every.add(node)
            sofar.spread.append(node)
        else:
            return None
    if not _yields_results(loop, sofar):
        return None
    return CellLoop(loop=loop, cells=tuple(sofar.cells), spread=tuple(sofar.spread), dim=dim)


def _yields_results(loop: UnrolledLoop, sofar: _StepSoFar) -> bool:
    """Of each result all steps are known, or the last one where only that is read."""
    results = [(loop.steps[1][index], each) for index, each in loop.results]
    return all(
        node in sofar.every or (not each and node in sofar.memories) for node, each in results
    )


def _cell(
    graph: Graph, loop: UnrolledLoop, node: fx.Node, sofar: _StepSoFar
) -> RecurrentCell | None:
    """None unless it reads its own state of the step before, and an input that is known for all
    steps."""
    given, held, *weights = node.args
    weights = [item for item in weights if item is not None]
    states = _states(loop, node)
    own = [loop.steps[0][index] for index in states]
    if list(held if isinstance(held, (list, tuple)) else [held]) != own or not own:
        return None
    if given not in sofar.every or not _has_fixed_weights(node, weights, sofar):
        return None
    before = {loop.steps[0][index]: initial for initial, index in loop.carried}
    initial = tuple(before[item] for item in own)
    if len({graph.val(item).dtype for item in (given, *weights, *initial)}) != 1:
        return None
    return RecurrentCell(
        node=node,
        layer=next(layer for op, layer in LAYERS.items() if is_op(node, op)),
        weights=tuple(weights),
        states=tuple(states),
        initial=initial,
    )


def _has_fixed_weights(node: fx.Node, weights: list[fx.Node], sofar: _StepSoFar) -> bool:
    return not node.kwargs and len(weights) in (2, 4) and sofar.changing.isdisjoint(weights)


def _states(loop: UnrolledLoop, node: fx.Node) -> list[int]:
    """Operations of a step that are the cell's new states; nothing where a part of them is never
    read."""
    step = loop.steps[1]
    if not is_op(node, aten.lstm_cell):
        return [step.index(node)]
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    inside = all(part in step for part in parts.values())
    return [step.index(parts[number]) for number in (0, 1)] if inside and len(parts) == 2 else []
