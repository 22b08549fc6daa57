"""One step of a loop over time as a region of values, with what each of its operands is in the
loop.

`recurrence_of(graph, loop, name) -> Recurrence | None`. Covered: what loops.py finds, when all
operations of a step act element by element and slices have the state's full shape. Not covered:
matrix products inside of a step, slices that are broadcast against the state, results of different
shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Operand, Value
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import RegionShape, shape_of
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, lower
from kernel_lsp.rewrite.codegen.regions.program_names import apply_program_names
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops.results import Result, results_of
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop
from kernel_lsp.rewrite.loops.walks import SliceWalk


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """One step as a region, and what its operands are in the loop."""

    lowered: LoweredRegion
    given: dict[Operand, fx.Node]
    """Operand -> what the launcher takes for it: a tensor that is walked through, a state before
    the loop, or what every step reads as it is."""
    walks: dict[Operand, SliceWalk]
    states: dict[Operand, int]
    """Operand -> number of the operation whose result takes its place in the next step."""
    values: dict[int, Value]
    """What the operations of a step are in the region."""
    results: tuple[Result, ...]
    loop: UnrolledLoop

    @property
    def inputs(self) -> list[fx.Node]:
        """What the launcher takes, in order."""
        return [self.given[operand] for operand in self.lowered.region.operands]


def acts_elementwise(nodes: Iterable[fx.Node]) -> bool:
    """Whether all of the nodes compute each element from the same element of their inputs."""
    return all(op_name(node) in TABLE for node in nodes)


def recurrence_of(graph: Graph, loop: UnrolledLoop, name: str) -> Recurrence | None:
    """The loop's step as a region; None when the steps cannot be generated."""
    step = loop.steps[1]
    if not _is_plain(graph, step):
        return None
    alone, space = _step_alone(graph, loop), RegionShape(sizes=shape_of(step[0]))
    try:
        lowered = lower(graph, [alone[node] for node in step], space, name)
        lowered = apply_program_names(graph, lowered)
    except Unsupported:
        return None
    found = _recurrence(graph, loop, lowered, alone)
    return found if _is_covered(graph, found) else None


def _recurrence(
    graph: Graph, loop: UnrolledLoop, lowered: LoweredRegion, alone: dict[fx.Node, fx.Node]
) -> Recurrence:
    """``alone``: node of the step, or what it reads, -> the same without the loop."""
    by_node = dict(zip(lowered.inputs, lowered.region.operands, strict=True))
    outside = {by_node[made]: node for node, made in alone.items() if made in by_node}
    before = {loop.steps[0][index]: (initial, index) for initial, index in loop.carried}
    walked = {node: walk for walk in loop.walks for node in walk.slices[1]}
    states = {operand: before[node] for operand, node in outside.items() if node in before}
    walks = {operand: walked[node] for operand, node in outside.items() if node in walked}
    given = dict(outside)
    given |= {operand: walk.base for operand, walk in walks.items()}
    given |= {operand: initial for operand, (initial, _) in states.items()}
    return Recurrence(
        lowered=lowered,
        given=given,
        walks=walks,
        states={operand: index for operand, (_, index) in states.items()},
        values={index: lowered.values[alone[node]] for index, node in enumerate(loop.steps[1])},
        results=tuple(results_of(graph, loop)),
        loop=loop,
    )


def _is_plain(graph: Graph, step: Sequence[fx.Node]) -> bool:
    """Element by element, of one shape, in floating-point numbers."""
    if not acts_elementwise(step) or len({shape_of(node) for node in step}) != 1:
        return False
    read = [item for node in step for item in (node, *node.all_input_nodes)]
    return {graph.val(item).dtype for item in read} <= set(FLOATS)


def _step_alone(graph: Graph, loop: UnrolledLoop) -> dict[fx.Node, fx.Node]:
    """One step in a graph of its own, where each slice is one contiguous tensor however it lies in
    memory: a call or its input in the loop -> the same there."""
    step, made = fx.Graph(), dict[fx.Node, fx.Node]()
    calls, same = (
        loop.steps[1],
        {node: walk.slices[1][0] for walk in loop.walks for node in walk.slices[1]},
    )
    for node in dict.fromkeys(read for call in calls for read in call.all_input_nodes):
        if node not in calls:
            stand_in = same.get(node, node)
            if stand_in not in made:
                made[stand_in] = step.placeholder(stand_in.name)
            made[node] = made[stand_in]
    for call in calls:
        made[call] = step.node_copy(call, lambda node: made[node])
    step.output([made[calls[index]] for index in wanted_operations(loop)])
    for node, twin in made.items():
        value = graph.val(node)
        with value.fake_mode:
            twin.meta = {**node.meta, "val": value.new_empty(value.shape)}
    return made


def wanted_operations(loop: UnrolledLoop) -> list[int]:
    """Operations whose values a step has to have: what is stored or handed on."""
    return list(dict.fromkeys([*(i for i, _ in loop.results), *(i for _, i in loop.carried)]))


def _is_covered(graph: Graph, found: Recurrence) -> bool:
    """Slices and states have the full shape, states start in it, and what is read afterwards is
    laid out like the result of a call."""
    loop, full = found.loop, tuple(range(len(found.lowered.region.dims)))
    fits = all(operand.axes == full for operand in (*found.walks, *found.states))
    handed_on = {index for _, index in loop.carried}
    kept = set(loop.final) <= handed_on and all(
        _starts_alike(graph, loop, *pair) for pair in loop.carried
    )
    dense = all(graph.val(loop.steps[1][index]).is_contiguous() for index, _ in loop.results)
    return fits and kept and dense and bool(found.walks) and len(found.states) == len(loop.carried)


def _starts_alike(graph: Graph, loop: UnrolledLoop, initial: fx.Node, index: int) -> bool:
    """The state before the loop has the shape and dtype that every step gives it."""
    first, later = graph.val(initial), graph.val(loop.steps[0][index])
    return bool(first.shape == later.shape and first.dtype == later.dtype)
