"""Loops over time that the tracer has unrolled, found again in the graph.

`loops_of(graph) -> list[Loop]`. A loop reads the slices of one or more tensors along their first dimension,
in order, and hands values (the state) from each step to the next. Every step must consist of the same
operations on the same constants; step 0 starts from values that stand before the loop.
Not covered: loops that run backwards, skip steps, look more than one step back, or whose first step differs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, has_effect, is_op, is_random

aten = torch.ops.aten
LEAST_STEPS = 4
MOST_UNROLLED = 100
"""Operations, slices among them, up to which an unrolled loop is treated like any other code."""
SHAPE_ONLY = (aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full)
"""They read no value of their argument: a state that starts as one of them starts before the loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """``steps[t][i]`` is what operation ``i`` of step ``t`` yields."""

    steps: tuple[tuple[fx.Node, ...], ...]
    slices: tuple[tuple[fx.Node, tuple[fx.Node, ...]], ...]
    """(tensor, its slices along dimension 0), for every tensor that the loop walks through."""
    carried: tuple[tuple[fx.Node, int], ...]
    """(value before the loop, number of the operation whose result takes its place in the next step)."""
    listed: tuple[int, ...]
    """Operations whose results of all steps are read after the loop."""
    final: tuple[int, ...]
    """Operations of which only the last step's result is read after the loop."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        return tuple(node for step in self.steps for node in step)

    @property
    def length(self) -> int:
        return len(self.steps)

    def variable(self, graph: Graph, index: int) -> str:
        """What the person calls the result of an operation of the loop."""
        return graph.variable(self.steps[-1][index])


def loops_of(graph: Graph) -> list[Loop]:
    """Every loop of the graph; several over slices of one length that do not feed each other count as one."""
    walks = _walks(graph)
    found = []
    for length in sorted({len(slices) for _, slices in walks}):
        loop = _loop(graph, [walk for walk in walks if len(walk[1]) == length], length)
        if loop is not None:
            found.append(loop)
    return found


def is_unrolled(graph: Graph) -> bool:
    """Most of the graph is one loop of many steps: what can be done for it is done for the whole loop."""
    size = len(graph.nodes)
    return size > MOST_UNROLLED and any(2 * len(loop.nodes) > size - loop.length for loop in loops_of(graph))


Walk = tuple[fx.Node, tuple[fx.Node, ...]]


def _walks(graph: Graph) -> list[Walk]:
    """Tensors whose slices along dimension 0 are all taken, with the slices in order."""
    taken: dict[fx.Node, dict[int, list[fx.Node]]] = {}
    for node in graph.nodes:
        if node.target is operator.getitem and is_op(node.args[0], aten.unbind):
            base, dim = node.args[0].args[0], (*node.args[0].args, 0)[1]
            index = node.args[1]
        elif is_op(node, aten.select) and isinstance(node.args[2], int):
            base, dim, index = node.args
        else:
            continue
        if dim % max(graph.val(base).dim(), 1) == 0:
            taken.setdefault(base, {}).setdefault(index % graph.val(base).shape[0], []).append(node)
    walks = []
    for base, slices in taken.items():
        single = [[n for n in slices.get(t, []) if _is_read(n)] for t in range(graph.val(base).shape[0])]
        if len(single) >= LEAST_STEPS and all(len(nodes) == 1 for nodes in single):
            walks.append((base, tuple(nodes[0] for nodes in single)))
    return walks


def _is_read(node: fx.Node) -> bool:
    return any(not is_op(user, *SHAPE_ONLY) for user in node.users)


def _loop(graph: Graph, walks: Sequence[Walk], length: int) -> Loop | None:
    order, starts = _in_order(graph, walks, length)
    size = starts[2] - starts[1] if starts else 0
    if size <= 0 or any(after - before != size for before, after in itertools.pairwise(starts)):
        return None
    for ahead in range(min(size, starts[0] + 1)):  # operations on the state alone may come first in a step
        steps = [tuple(order[start - ahead : start - ahead + size]) for start in starts]
        if len(steps[-1]) < size or any(has_effect(n) or is_random(n) for n in steps[1]):
            continue
        carried, readers = _carried(graph, steps, walks), _readers(graph, steps)
        if carried and readers is not None:
            return Loop(
                steps=tuple(steps), slices=tuple(walks), carried=carried, listed=readers[0], final=readers[1]
            )
    return None


def _in_order(graph: Graph, walks: Sequence[Walk], length: int) -> tuple[list[fx.Node], list[int]]:
    """Nodes without slices and what no step changes, and where in them the first reader of each slice is.
    The tracer writes one step after the other."""
    time = {node: t for _, slices in walks for t, node in enumerate(slices)}
    order = [n for n in graph.nodes if n not in time and not is_op(n, *SHAPE_ONLY, aten.unbind)]
    for node in order:
        time[node] = max((time.get(source, -1) for source in node.all_input_nodes), default=-1)
    values, starts = numbered(graph), _starts(order, walks, length)
    if not starts:
        return order, []
    constant = {values[node] for node in order[starts[1] : starts[-1]] if time[node] < 0}
    order = [node for node in order if values[node] not in constant]
    return order, _starts(order, walks, length)


def _starts(order: Sequence[fx.Node], walks: Sequence[Walk], length: int) -> list[int]:
    position = {node: index for index, node in enumerate(order)}
    reads = [
        [position[user] for _, slices in walks for user in slices[t].users if user in position]
        for t in range(length)
    ]
    return [min(found) for found in reads] if all(reads) else []


def _carried(
    graph: Graph, steps: Sequence[Sequence[fx.Node]], walks: Sequence[Walk]
) -> tuple[tuple[fx.Node, int], ...] | None:
    """How every step reads the one before it; None when two steps differ."""
    slices = [{nodes[t]: number for number, (_, nodes) in enumerate(walks)} for t in range(len(steps))]
    values = numbered(graph)

    def calls(t: int) -> list[Any]:
        here = {node: ("here", index) for index, node in enumerate(steps[t])}
        before = {node: ("before", index) for index, node in enumerate(steps[t - 1])} if t else {}
        sliced = {node: ("slice", number) for node, number in slices[t].items()}
        known = {**before, **sliced, **here}
        return [_described(node, lambda arg: known.get(arg, ("constant", values[arg]))) for node in steps[t]]

    pattern = calls(1)
    if any(calls(t) != pattern for t in range(2, len(steps))):
        return None
    initial: dict[int, int] = {}
    if not _agree(calls(0), pattern, initial):
        return None
    nodes = {number: node for node, number in reversed(values.items())}
    return tuple((nodes[number], index) for index, number in sorted(initial.items()))


def _agree(first: Any, later: Any, initial: dict[int, int]) -> bool:
    """Step 0 does what the others do, with one and the same value wherever they read the step before."""
    if isinstance(later, tuple) and later[:1] == ("before",):
        return first[0] == "constant" and initial.setdefault(later[1], first[1]) == first[1]
    if isinstance(later, (tuple, list)):
        return (
            type(first) is type(later)
            and len(first) == len(later)
            and all(_agree(a, b, initial) for a, b in zip(first, later, strict=True))
        )
    return bool(first == later)


def numbered(graph: Graph) -> dict[fx.Node, int]:
    """Equal numbers for nodes that compute the same from the same inputs."""
    found: dict[fx.Node, int] = {}
    known: dict[Hashable, int] = {}
    for node in graph.fx.nodes:
        if node.op == "output":
            continue
        own: Hashable = node.name
        if node.op == "call_function" and "generated" not in node.meta and not is_random(node):
            own = repr(_described(node, lambda arg: ("value", found[arg])))
        found[node] = known.setdefault(own if not has_effect(node) else node.name, len(known))
    return found


def _described(node: fx.Node, place: Callable[[fx.Node], tuple[str, int]]) -> tuple[Any, ...]:
    """What a call does, with every node in its arguments replaced by its place."""

    def tell(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return place(value)
        if isinstance(value, (list, tuple)):
            return [tell(item) for item in value]
        return repr(value)

    named = sorted(node.kwargs.items())
    return str(node.target), [tell(arg) for arg in node.args], [[name, tell(arg)] for name, arg in named]


def _readers(
    graph: Graph, steps: Sequence[Sequence[fx.Node]]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Operations that are read after the loop: in every step, in the last one alone. None for others."""
    order = {node: (t, index) for t, step in enumerate(steps) for index, node in enumerate(step)}
    outside: dict[int, set[int]] = {}
    for node, (t, index) in order.items():
        if graph.is_output(node) or any(user not in order for user in node.users):
            outside.setdefault(index, set()).add(t)
    last = len(steps) - 1
    listed = tuple(i for i, seen in outside.items() if len(seen) == len(steps))
    final = tuple(i for i, seen in outside.items() if seen == {last})
    return (listed, final) if len(listed) + len(final) == len(outside) else None
