"""Steps of a loop split in three: what comes before the state, the state's own way, and what is
read off it.

`split_of(graph, loop) -> Split | None`, `split(graph, found) -> Loop`, in place. What depends on
no state (`torch.exp(delta[:, t, :, None] * A)`) is done for all steps in front of the loop, and
what no state depends on (`(h * c[:, t, None]).sum(-1)`) behind it, on the states of all steps
(spreading.py). So a loop is left whose steps are few operations on tensors of one shape. Not
covered: what reads the state of the step before beside the state itself, and loops of which a
result is read before they end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.recurrence.spreading import last_of, spread, spreads, stack_walk
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops.results import Result, first_reader, redirect
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, loops_of

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSplit:
    """Numbers of operations of a step, each in order."""

    loop: UnrolledLoop
    dim: int
    """Where the steps lie in the tensors of all steps."""
    head: tuple[int, ...]
    core: tuple[int, ...]
    tail: tuple[int, ...]


def split_of(graph: Graph, loop: UnrolledLoop) -> StepSplit | None:
    """What of a step is the state's own way, and what is not; None where all of a step is, and
    where something of it cannot be split off."""
    order = {node: index for index, node in enumerate(graph.fx.nodes)}
    if order[first_reader(graph, loop)] < max(order[node] for node in loop.nodes):
        return None
    for dim in loop.dims:
        found = _split(graph, loop, dim)
        if found is not None and _exists(loop, found, order):
            return found
    return None


def _split(graph: Graph, loop: UnrolledLoop, dim: int) -> StepSplit | None:
    step = loop.steps[1]
    every = {node for walk in loop.walks for node in walk.slices[1]}
    changing = {*every, *step, *loop.steps[0]}
    kept, head, core, tail = _state_operations(loop), list[int](), list[int](), list[int]()
    for index, node in enumerate(step):
        if spreads(graph, node, every, changing, dim):
            every.add(node)
            head.append(index)
        else:
            (core if node in kept else tail).append(index)
    every |= {step[index] for index in core}
    for index in tail:
        if not spreads(graph, step[index], every, changing, dim):
            return None
        every.add(step[index])
    handed_on = {index for _, index in loop.carried}
    if not core or not (head or tail) or not handed_on <= set(core):
        return None
    return StepSplit(loop=loop, dim=dim, head=tuple(head), core=tuple(core), tail=tuple(tail))


def _state_operations(loop: UnrolledLoop) -> set[fx.Node]:
    """Operations of step 1 on which the next state depends."""
    step = set(loop.steps[1])
    found = {loop.steps[1][index] for _, index in loop.carried}
    todo = list(found)
    while todo:
        new = {item for item in todo.pop().all_input_nodes if item in step} - found
        found |= new
        todo += new
    return found


def _exists(loop: UnrolledLoop, found: StepSplit, order: dict[fx.Node, int]) -> bool:
    """What is done in front of the loop reads nothing that its first step makes."""
    first, here = loop.steps[0], order[loop.steps[0][found.core[0]]]
    slices = {node for walk in loop.walks for node in walk.slices[0]}
    read = [item for index in found.head for item in first[index].all_input_nodes]
    read = [item for item in read if item not in first and item not in slices]
    return all(order[item] < here for item in [*read, *(walk.base for walk in loop.walks)])


def split(graph: Graph, found: StepSplit) -> UnrolledLoop | None:
    """The loop that is left. The tensors of all steps are known by what step 0 made of them."""
    loop, dim, first = found.loop, found.dim, found.loop.steps[0]
    here, behind = first[found.core[0]], first_reader(graph, loop)
    every = dict[fx.Node, fx.Node]()
    for walk in loop.walks:
        tensor = stack_walk(graph, walk, dim, here)
        every |= dict.fromkeys(walk.slices[0], tensor)
    for index in found.head:
        every[first[index]] = spread(graph, first[index], every, dim, here)
    _read_slices(graph, found, every)
    inputs = {item for index in found.tail for item in first[index].all_input_nodes}
    for index in found.core:
        if first[index] in inputs:
            states = [step[index] for step in loop.steps]
            every[first[index]] = graph.call(aten.stack.default, (states, dim), before=behind)
    for index in found.tail:
        every[first[index]] = spread(graph, first[index], every, dim, behind)
    for index, each in loop.results:
        if index not in found.core:
            part = every[first[index]]
            part = part if each else last_of(graph, part, dim, behind)
            redirect(graph, loop, Result(index=index, every=each, dim=dim), part, behind)
    state = loop.steps[1][found.core[0]]
    graph.drop_unused()
    return next((left for left in loops_of(graph) if state in left.nodes), None)


def _read_slices(graph: Graph, found: StepSplit, every: dict[fx.Node, fx.Node]) -> None:
    """Let the state's own way read slices of what was done for all steps, as wide as the state."""
    first, here = found.loop.steps[0], found.loop.steps[0][found.core[0]]
    wide = {index: _widen(graph, every[first[index]], found, here) for index in found.head}
    for t, step in enumerate(found.loop.steps):
        inside = {step[index] for index in found.core}
        for index in found.head:
            if any(user in inside for user in step[index].users):
                piece = graph.call(
                    aten.select.int, (wide[index], found.dim, t), before=step[found.core[0]]
                )
                step[index].replace_all_uses_with(
                    piece, delete_user_cb=lambda user, own=inside: user in own
                )


def _widen(graph: Graph, tensor: fx.Node, found: StepSplit, before: fx.Node) -> fx.Node:
    """As wide as the state where it has as many dimensions: slices that are narrower are no
    walk."""
    sizes = list(graph.val(found.loop.steps[0][found.core[0]]).shape)
    sizes.insert(found.dim, found.loop.length)
    given = list(graph.val(tensor).shape)
    fits = all(one in (1, size) for one, size in zip(given, sizes, strict=False))
    if given == sizes or len(given) != len(sizes) or not fits:
        return tensor
    return graph.call(aten.expand.default, (tensor, sizes), before=before)
