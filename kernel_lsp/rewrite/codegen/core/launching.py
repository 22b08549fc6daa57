"""The launch of a generated kernel in the graph: what it is called, where it stands, what it
replaces.

`unique_name` and `make_named` choose the launcher's name, `place` the spot, `results` and `launch`
insert it. Results are written contiguous, over the nodes' dimensions or over these in another
order. Not covered: launches whose results replace something else than whole nodes
(recurrence/fuse.py), or are not contiguous (attention/fuse.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.core import strides
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph


def unique_name(graph: Graph, wish: str) -> str:
    """A launcher's name that neither the program nor another kernel has."""
    taken = {kernel.name for kernel in graph.generated}
    name, count = wish, 1
    while name in taken or name in graph.origin.program:
        count += 1
        name = f"{wish}_{count}"
    return name


def make_named(graph: Graph, wish: str, make: Callable[[str], GeneratedSource]) -> GeneratedSource:
    """What ``make`` makes under a name that nothing else has; equal source under one name is
    shared on purpose."""
    taken = {kernel.name: kernel for kernel in graph.generated}
    name, count = wish, 1
    while True:
        kernel = make(name)
        if name not in graph.origin.program and taken.get(name, kernel) == kernel:
            return kernel
        count += 1
        name = f"{wish}_{count}"


def place(
    graph: Graph, nodes: Collection[fx.Node], outputs: Sequence[fx.Node], inputs: Sequence[fx.Node]
) -> fx.Node | None:
    """What the launch stands before: the first reader of a result outside of ``nodes``. None when
    an input does not exist by then."""
    order = {node: index for index, node in enumerate(graph.fx.nodes)}
    inside = set(nodes)
    readers = [user for node in outputs for user in node.users if user not in inside]
    spot = min([*readers, graph.output], key=lambda node: order[node])
    return spot if all(order[node] < order[spot] for node in inputs) else None


def launch(
    graph: Graph,
    kernel: GeneratedSource,
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    before: fx.Node,
    order: Sequence[int] = (),
) -> None:
    """Replace ``outputs`` by the results of one launch, whose dimensions have this order."""
    made = results(graph, kernel, inputs, outputs, before, order)
    if order:
        made = [strides.permute_node(graph, node, strides.inverse(order), before) for node in made]
    if len(outputs) == 1:
        graph.replace(outputs[0], made[0])
        return
    for old, new in zip(outputs, made, strict=True):
        old.replace_all_uses_with(new)  # all of them before unused nodes are dropped
    graph.drop_unused()


def results(
    graph: Graph,
    kernel: GeneratedSource,
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    before: fx.Node,
    order: Sequence[int] = (),
) -> list[fx.Node]:
    """A launch that nobody reads yet: one node for each of ``outputs``."""
    values = [_contiguous(node.meta["val"], order) for node in outputs]
    if len(values) == 1:
        name = f"{outputs[0].name}_fused"
        return [graph.call_generated(kernel, inputs, like=values[0], before=before, name=name)]
    call = graph.call_generated(  # a name of its own: the launcher's would hide the launcher
        kernel, inputs, like=tuple(values), before=before, name="results"
    )
    return [
        graph.call(operator.getitem, (call, index), before=before) for index in range(len(values))
    ]


def _contiguous(value: Any, order: Sequence[int]) -> Any:
    """The fake result: kernels always write contiguous tensors."""
    with value.fake_mode:
        return (value.permute(*order) if order else value).contiguous()
