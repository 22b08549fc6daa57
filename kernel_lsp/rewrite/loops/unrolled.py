"""Loops over time that the tracer has unrolled, found again in the graph.

`loops_of(graph) -> list[Loop]`. A loop walks through one or more tensors (walks.py: along any
dimension, forwards or backwards) and hands values (the state) from each step to the next. Every
step must consist of the same operations on the same constants; step 0 starts from values that
stand before the loop. Not covered: loops that skip steps, whose first step differs, or where one
operation looks two steps back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, has_effect, is_op, is_random
from kernel_lsp.rewrite.loops.walks import MIN_STEPS, SliceWalk, WalkReading, walks_of

aten = torch.ops.aten
MAX_UNROLLED = 100
"""Operations, slices among them, up to which an unrolled loop is treated like any other code."""
SHAPE_ONLY = (
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
)
"""They read no value of their argument: a state that starts as one of them starts before the
loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnrolledLoop:
    """``steps[t][i]`` is what operation ``i`` of step ``t`` yields."""

    steps: tuple[tuple[fx.Node, ...], ...]
    walks: tuple[SliceWalk, ...]
    """Every tensor that the loop walks through, and how."""
    carried: tuple[tuple[fx.Node, int], ...]
    """(value before the loop, number of the operation whose result takes its place in the next
    step)."""
    listed: tuple[int, ...]
    """Operations whose results of several steps are read after the loop."""
    final: tuple[int, ...]
    """Operations of which only the last step's result is read after the loop."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes of all steps, in order."""
        return tuple(node for step in self.steps for node in step)

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.steps)

    @property
    def results(self) -> tuple[tuple[int, bool], ...]:
        """What is read after the loop: operations, and whether in more than the last step."""
        return (*((i, True) for i in self.listed), *((i, False) for i in self.final))

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions in which tensors of all steps may have them, that of the program first."""
        return (1, 0) if {walk.dim for walk in self.walks} == {1} else (0,)

    def label(self, graph: Graph) -> str:
        """A name for its place: its first operation and its last."""
        return graph.label(self.steps[0][0], self.steps[-1][-1])

    def variable(self, graph: Graph, index: int) -> str:
        """What the person calls the result of an operation of the loop."""
        return graph.variable(self.steps[-1][index])


def loops_of(graph: Graph) -> list[UnrolledLoop]:
    """Every loop of the graph, in the order in which they begin."""
    order = [n for n in graph.nodes if n.all_input_nodes and not is_op(n, *SHAPE_ONLY, aten.unbind)]
    values: dict[fx.Node, int] = {}
    found, inside = list[UnrolledLoop](), set[fx.Node]()
    for readings in _together(walks_of(graph, order)):
        if order[readings[0].starts[0]] in inside:
            continue
        values = values or number_nodes(graph)
        tried = (_loop(graph, order, part, values) for part in _parts(readings))
        if (loop := next((loop for loop in tried if loop is not None), None)) is not None:
            found.append(loop)
            inside.update(loop.nodes)
    return found


def is_unrolled(graph: Graph) -> bool:
    """Most of the graph is loops of many steps: what can be done for them is done for whole
    loops."""
    size = len(graph.nodes)
    if size <= MAX_UNROLLED:
        return False
    loops = loops_of(graph)
    steps = sum(loop.length for loop in loops)
    return 2 * sum(len(loop.nodes) for loop in loops) > size - steps and bool(loops)


def _together(readings: Sequence[WalkReading]) -> list[list[WalkReading]]:
    """Readings that advance in step with each other: within one step's operations, equally
    often."""
    groups: list[list[WalkReading]] = []
    for one in readings:
        for group in groups:
            first = group[0]
            if (one.size, len(one.starts)) == (first.size, len(first.starts)) and (
                one.starts[0] < first.starts[0] + first.size
            ):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _parts(readings: Sequence[WalkReading]) -> Iterator[list[WalkReading]]:
    """All steps; and should somebody read one more slice just a step before or after the loop, the
    others."""
    length = len(readings[0].starts)
    for first, last in ((0, length), (1, length), (0, length - 1), (1, length - 1)):
        if last - first >= MIN_STEPS:
            yield [reading.part(first, last) for reading in readings]


def _loop(
    graph: Graph,
    order: Sequence[fx.Node],
    readings: Sequence[WalkReading],
    values: dict[fx.Node, int],
) -> UnrolledLoop | None:
    walks = tuple(dict.fromkeys(reading.walk for reading in readings))
    readers = [order[start] for start in readings[0].starts]
    order = _without_constants(order, readers, walks, values)
    starts = _places(readers, order)
    if len({after - before for before, after in itertools.pairwise(starts)}) != 1:
        return None
    size = starts[1] - starts[0]
    # Operations on the state alone may come first in a step.
    for ahead in range(min(size, starts[0] + 1)):
        steps = [tuple(order[start - ahead : start - ahead + size]) for start in starts]
        if len(steps[-1]) < size or any(has_effect(n) or is_random(n) for n in steps[1]):
            continue
        carried = _carried_states(steps, walks, values)
        if carried and _feeds_back(steps, carried):
            listed, final = _readers(graph, steps)
            return UnrolledLoop(
                steps=tuple(steps), walks=walks, carried=carried, listed=listed, final=final
            )
    return None


def _places(readers: Sequence[fx.Node], order: Sequence[fx.Node]) -> list[int]:
    """Where the readers stand; none where one is missing."""
    position = {node: index for index, node in enumerate(order)}
    found = [position[node] for node in readers if node in position]
    return found if len(found) == len(readers) else []


def _without_constants(
    order: Sequence[fx.Node],
    readers: Sequence[fx.Node],
    walks: Sequence[SliceWalk],
    values: dict[fx.Node, int],
) -> list[fx.Node]:
    """The order without slices and without what no step changes, whichever step computes it.
    The tracer writes one step after the other."""
    slices = {node for walk in walks for nodes in walk.slices for node in nodes}
    changing = set(slices)
    for node in order:
        if any(source in changing for source in node.all_input_nodes):
            changing.add(node)
    first, last = order.index(readers[1]), order.index(readers[-1])
    constant = {values[node] for node in order[first:last] if node not in changing}
    return [node for node in order if node not in slices and values[node] not in constant]


def _share_a_slice(walks: Sequence[SliceWalk], step: int) -> bool:
    read = [node for walk in walks for node in walk.slices[step]]
    return len(set(read)) < len(read)


def _carried_states(
    steps: Sequence[Sequence[fx.Node]], walks: Sequence[SliceWalk], values: dict[fx.Node, int]
) -> tuple[tuple[fx.Node, int], ...] | None:
    """How every step reads the one before it; None when two steps differ."""

    def calls(t: int) -> list[Any]:
        here = {node: ("here", index) for index, node in enumerate(steps[t])}
        before = {node: ("before", index) for index, node in enumerate(steps[t - 1])} if t else {}
        sliced: dict[fx.Node, tuple[Any, ...]] = {}
        for number, walk in enumerate(walks):
            # Two that meet in the middle read the same slice there.
            for node in walk.slices[t]:
                sliced[node] = (*sliced.get(node, ("slice",)), number)
        known = {**before, **sliced, **here}
        return [
            _describe_call(node, lambda arg: known.get(arg, ("constant", values[arg])))
            for node in steps[t]
        ]

    initial: dict[int, int] = {}
    pattern = calls(1)
    if _share_a_slice(walks, 1):
        return None  # which of two walks step 1 reads is not certain
    if not all(_agree(calls(t), pattern, None) for t in range(2, len(steps))):
        return None
    if not _agree(calls(0), pattern, initial):
        return None
    nodes = {number: node for node, number in reversed(values.items())}
    return tuple((nodes[number], index) for index, number in sorted(initial.items()))


def _feeds_back(steps: Sequence[Sequence[fx.Node]], carried: Sequence[tuple[fx.Node, int]]) -> bool:
    """A state follows from a state; else steps only overlap, and nothing keeps them in their
    order."""
    reached = {steps[0][index] for _, index in carried}
    for node in steps[1]:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return any(steps[1][index] in reached for _, index in carried)


def _agree(one: Any, pattern: Any, initial: dict[int, int] | None) -> bool:
    """A step does what the pattern does. Step 0 (the one with ``initial``) has one and the same
    value where others read the step before."""
    if not isinstance(pattern, (tuple, list)) or type(one) is not type(pattern):
        return bool(one == pattern)
    if pattern[:1] == ("slice",):
        return one[:1] == ("slice",) and pattern[1] in one[1:]
    if pattern[:1] == ("before",) and initial is not None:
        return one[:1] == ("constant",) and initial.setdefault(pattern[1], one[1]) == one[1]
    return len(one) == len(pattern) and all(
        _agree(a, b, initial) for a, b in zip(one, pattern, strict=True)
    )


def number_nodes(graph: Graph) -> dict[fx.Node, int]:
    """Equal numbers for nodes that compute the same from the same inputs."""
    found: dict[fx.Node, int] = {}
    known: dict[Hashable, int] = {}
    for node in graph.fx.nodes:
        if node.op == "output":
            continue
        own: Hashable = node.name
        if node.op == "call_function" and "generated" not in node.meta and not is_random(node):
            own = repr(_describe_call(node, lambda arg: ("value", found[arg])))
        found[node] = known.setdefault(own if not has_effect(node) else node.name, len(known))
    return found


def _describe_call(node: fx.Node, place: Callable[[fx.Node], tuple[str, int]]) -> tuple[Any, ...]:
    """What a call does, with every node in its arguments replaced by its place."""

    def tell(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return place(value)
        if isinstance(value, (list, tuple)):
            return [tell(item) for item in value]
        return repr(value)

    named = sorted(node.kwargs.items())
    return (
        str(node.target),
        [tell(arg) for arg in node.args],
        [[name, tell(arg)] for name, arg in named],
    )


def _readers(
    graph: Graph, steps: Sequence[Sequence[fx.Node]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Operations that are read after the loop: in several steps, in the last one alone."""
    order = {node: (t, index) for t, step in enumerate(steps) for index, node in enumerate(step)}
    outside: dict[int, set[int]] = {}
    for node, (t, index) in order.items():
        if graph.is_output(node) or any(user not in order for user in node.users):
            outside.setdefault(index, set()).add(t)
    last = {len(steps) - 1}
    listed = tuple(i for i, seen in outside.items() if seen != last)
    return listed, tuple(i for i, seen in outside.items() if seen == last)
