"""What keeps pointwise chains, reductions, norms and losses from one kernel: the generator's own
reasons.

`pointwise` and `reductions` ask what the matchers ask (codegen/groups/fuse.py) and hear why it is
refused. Not covered: what would be right and not faster, which the engine sees by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, argument_nodes, op_name
from kernel_lsp.rewrite.codegen.core.space import RegionShape, demanded_space
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.codegen.pointwise.dropping import is_dropping
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE, build_expression, is_pointwise
from kernel_lsp.rewrite.codegen.regions.grow import grow, pointwise_groups
from kernel_lsp.rewrite.generated import Miss
from kernel_lsp.rewrite.graph import Graph, argument, drops
from kernel_lsp.rewrite.near_misses import roof

REMEDIES = {
    "no kernel computes in torch.float64": "use float32 where its digits are enough",
    "reduced dimensions are not adjacent": "reduce one run of dimensions after the other",
    fuse.NO_BACKWARD: "if it is called in eval mode, say so: `# kernel-lsp: workload eval …`",
    "a dropout of": "it drops nothing in eval mode; if it is called so: `# kernel-lsp: workload "
    "eval …`",
    "running statistics are an effect": "track_running_stats=False, where nobody reads them",
}
"""By the beginning of a reason."""


def pointwise(graph: Graph) -> Iterator[Miss]:
    """Operations that would be in a chain but for one thing, and chains that no kernel can be made
    of."""
    refused = {node: why for node in graph.nodes if (why := _refusal(node)) is not None}
    for nodes in _runs(graph, refused):
        if len(nodes) > 1 or any(
            map(_elementwise, [*nodes[0].all_input_nodes, *graph.users(nodes[0])])
        ):
            yield _miss(nodes, refused[nodes[0]])
    for group, space in pointwise_groups(graph):
        if (why := _unsupported_reason(graph, group, space, alone=False)) is not None:
            yield _miss(group, why)


def reductions(graph: Graph, ops: Sequence[str], *, alone: bool = True) -> Iterator[Miss]:
    """Reductions of one family, with their neighbors where these join; ``alone`` as for their
    matches."""
    taken = set[fx.Node]()
    for seed in graph.nodes:
        if seed in taken or op_name(seed) not in ops:
            continue
        try:
            space = demanded_space(seed)
        except Unsupported as refused:
            feeders = [
                arg for arg in seed.all_input_nodes if _elementwise(arg) and graph.only_user(arg)
            ]
            yield _miss([seed, *feeders], str(refused))
            continue
        if space is None:
            continue
        nodes = grow(graph, seed, space)
        taken.update(nodes)
        if (why := _unsupported_reason(graph, nodes, space, alone=alone)) is not None:
            yield _miss([seed, *(node for node in nodes if node is not seed)], why)


def type_of(node: fx.Node) -> str | None:
    """Why no kernel reads or writes values of this type; None where kernels do."""
    value = node.meta.get("val")
    known = isinstance(value, torch.Tensor) and value.dtype in FLOATS
    return (
        None
        if known or not isinstance(value, torch.Tensor)
        else f"no kernel computes in {value.dtype}"
    )


def remedy_for(why: str) -> str:
    """What a user could do about that reason; "": nothing is known."""
    return next((remedy for start, remedy in REMEDIES.items() if why.startswith(start)), "")


def _unsupported_reason(
    graph: Graph, nodes: Sequence[fx.Node], space: RegionShape, *, alone: bool
) -> str | None:
    try:
        fuse.demanded_match(graph, nodes, space, alone=alone)
    except Unsupported as refused:
        return str(refused)
    return None


def _refusal(node: fx.Node) -> str | None:
    """Why an operation that kernels know is not generated; None where it is, or where it is
    unknown."""
    if not _elementwise(node) or is_pointwise(node) or is_dropping(node):
        return None
    if op_name(node) == "dropout" and drops(node):
        return f"a dropout of {argument(node, 'p')} draws random numbers, as this workload trains"
    if node.meta["val"].dtype != torch.bool and (why := type_of(node)) is not None:
        return why
    try:
        build_expression(node)
    except Unsupported as refused:
        return str(refused)
    odd = (type_of(arg) for _, arg in argument_nodes(node))
    return next(
        (why for why in odd if why is not None), f"{op_name(node)} of these types has no kernel"
    )


def _elementwise(node: fx.Node) -> bool:
    known = op_name(node) in TABLE and isinstance(node.meta.get("val"), torch.Tensor)
    return known and roof.is_work(node)


def _runs(graph: Graph, refused: dict[fx.Node, str]) -> list[list[fx.Node]]:
    """Neighbors that are refused for the same reason, together; graph order."""
    runs: list[list[fx.Node]] = []
    for node in graph.nodes:
        if node not in refused:
            continue
        near = [run for run in runs if refused[run[0]] == refused[node] and _reads(node, run)]
        merged = [other for run in near for other in run]
        runs = [run for run in runs if run not in near] + [[*merged, node]]
    return runs


def _reads(node: fx.Node, run: Sequence[fx.Node]) -> bool:
    return any(arg in run for arg in node.all_input_nodes)


def _miss(nodes: Sequence[fx.Node], why: str) -> Miss:
    return Miss(nodes=tuple(nodes), missing=why, remedy=remedy_for(why))
