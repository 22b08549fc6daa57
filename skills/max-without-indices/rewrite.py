"""A maximum or minimum along a dimension whose indices nobody reads becomes amax or amin."""

from __future__ import annotations

import operator

from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    is_op,
    proof,
    without_gradients,
)

WITHOUT = {aten.max: aten.amax, aten.min: aten.amin}
SHARE = 0.1
"""Of the operation's time; a guess. What follows from it, a fusion, is other skills' to estimate."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    return [
        Match(
            nodes=(node,),
            label=graph.label(node),
            summary=f"take the {node.target._opname} without the indices that nobody reads",
            benefit=cost.share(graph, SHARE * cost.seconds(graph, node)),
            data={"values": values},
        )
        for node in graph.nodes
        if is_op(node, *WITHOUT) and (values := _only_values(graph, node))
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    node, values = match.nodes[0], match.data["values"]
    fact = graph.fact(values[0])
    readers = ", ".join(value.name for value in values)
    return [
        proof("nobody reads the indices", set(graph.users(node)) == set(values), f"{readers} reads values"),
        proof("the values are floating-point numbers", fact.floating, f"{fact.dtype}"),
        proof(
            "no gradient would be shared among ties",
            not graph.gradients,
            "the dispatch guard takes the original path while gradients are recorded",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node, values = match.nodes[0], match.data["values"]
    kind = next(other for op, other in WITHOUT.items() if is_op(node, op))
    dim, keepdim = argument(node, "dim"), bool(argument(node, "keepdim"))
    made = graph.call(kind.default, (node.args[0], [dim], keepdim), before=node)
    graph.note(made, "The values alone: nobody reads the indices.")
    without_gradients(graph, "elements that tie share a gradient, where eager gives it to one of them")
    for value in values:
        graph.replace(value, made)


def _only_values(graph: Graph, node: Node) -> list[Node]:
    """Who takes the values of max or min along a dimension; nobody when anything else is asked for."""
    if not isinstance(argument(node, "dim"), int) or graph.is_output(node):
        return []
    users = list(graph.users(node))
    values = all(user.target is operator.getitem and user.args[1] == 0 for user in users)
    return users if values else []
