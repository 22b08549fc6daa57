"""What keeps a loop over time from one kernel: an operation of its step, or that it does more than
compute.

Not covered: loops whose steps differ or look back further than one step (rewrite/loops/unrolled.py
finds none there)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE
from kernel_lsp.rewrite.generated import Miss
from kernel_lsp.rewrite.graph import Graph, has_effect, is_random
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, loops_of
from kernel_lsp.rewrite.loops.walks import WalkReading, walks_of
from kernel_lsp.rewrite.near_misses.fusing import remedy_for, type_of

DRAWN_BEFORE = "draw what the loop needs for all steps in front of it"
UNKNOWN = "its step is of no form that a kernel is generated for"


def misses(graph: Graph, generated: Callable[[UnrolledLoop], bool]) -> Iterator[Miss]:
    """Loops over time that no kernel of ours takes, each with what stands in the way.
    ``generated``: a kernel can be made of the loop."""
    found = loops_of(graph)
    inside = {node for loop in found for node in loop.nodes}
    for loop in found:
        if not generated(loop):
            node, why = _of_step(loop.steps[1])
            yield Miss(nodes=(node, *loop.nodes), missing=why, remedy=remedy_for(why))
    yield from _impure(graph, inside)


def _of_step(step: Sequence[fx.Node]) -> tuple[fx.Node, str]:
    """The first operation that is not done, and what it is."""
    for node in step:
        if (why := type_of(node)) is not None:
            return node, why
        if op_name(node) not in TABLE:
            return (
                node,
                f"each step computes {op_name(node) or node.name}, and the kernel goes element by "
                f"element",
            )
    if len({tuple(node.meta["val"].shape) for node in step}) > 1:
        return step[0], "tensors of a step have several shapes"
    return step[0], UNKNOWN


def _impure(graph: Graph, inside: set[fx.Node]) -> Iterator[Miss]:
    """Tensors that are walked through step by step, with what each step must do itself in
    between."""
    order = [node for node in graph.nodes if node.all_input_nodes]
    covered = set(inside)
    for reading in walks_of(graph, order):
        nodes = _between(order, reading)
        odd = next((node for node in nodes if has_effect(node) or is_random(node)), None)
        if odd is None or not covered.isdisjoint(nodes) or not _feeds(reading, order):
            continue
        covered.update(nodes)
        what = "draws random numbers" if is_random(odd) else "changes more than its result"
        remedy = DRAWN_BEFORE if is_random(odd) else ""
        yield Miss(
            nodes=(odd, *nodes),
            missing=f"each step {what} ({op_name(odd) or odd.name})",
            remedy=remedy,
        )


def _between(order: Sequence[fx.Node], reading: WalkReading) -> list[fx.Node]:
    """From the first step's first operation to the last step's last one."""
    return list(order[reading.starts[0] : reading.starts[-1] + reading.size])


def _feeds(reading: WalkReading, order: Sequence[fx.Node]) -> bool:
    """What the first step computes reaches the last but one (behind the last, all may meet): steps
    that do not know each other are no loop."""
    reached = {order[reading.starts[0]]}
    for node in _between(order, reading):
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return not reached.isdisjoint(order[reading.starts[-2] : reading.starts[-1]])
