"""A reduction over a dimension of size 1 returns its input; softmax over it is 1, log-softmax is
0."""

from __future__ import annotations

import operator

from kernel_lsp.rewrite.skill import (
    NONFINITE,
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    dims_of,
    insert_full,
    is_op,
    nonfinite,
    proof,
    without_gradients,
)

IDENTITIES = (aten.sum, aten.mean, aten.amax, aten.amin, aten.logsumexp, aten.prod)
SELECTING = (aten.max, aten.min)
NORMALIZING = {aten.softmax: 1.0, aten.log_softmax: 0.0}


def parameters(graph: Graph, match: Match) -> dict[str, list[object]]:
    exact = match.data["kind"] == "identity" or graph.fact(match.data["operand"]).finite
    return {} if exact else dict(NONFINITE)


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        kind = _kind(graph, node)
        if kind is None:
            continue
        covered = _selected_values(graph, node) if is_op(node, *SELECTING) else node
        if covered is None:
            continue
        found.append(
            Match(
                nodes=(node,),
                label=graph.label(node),
                summary=f"drop the {node.target._opname} over a dimension of size 1",
                benefit=cost.share(graph, cost.seconds(graph, node)),
                data={"kind": kind, "result": covered, "operand": node.args[0]},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    node, value = match.nodes[0], graph.fact(match.data["operand"])
    if match.data["kind"] == "difference":
        return [proof("both operands are the same tensor", node.args[0] is node.args[1], "x - x")]
    dims = dims_of(node)
    sizes = [value.shape[d] for d in dims or ()]
    return [
        proof(
            "every reduced dimension has size 1",
            all(s == 1 for s in sizes),
            f"sizes {sizes} of {value.shape}",
        ),
        proof(
            "the dtype stays",
            graph.fact(match.data["result"]).dtype == value.dtype,
            f"{value.dtype}",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node, result = match.nodes[0], match.data["result"]
    operand = match.data["operand"]
    if match.data["kind"] == "identity":
        graph.replace(result, _same_value(graph, node, operand))
        return
    number = next((v for op, v in NORMALIZING.items() if is_op(node, op)), 0.0)
    if graph.fact(operand).finite or nonfinite(parameters):
        made = insert_full(graph, node, number)
        without_gradients(graph, "a constant has no gradient, where eager has one of zeros")
        graph.note(made, f"{_words(node)} over one element is {number:g}.")
        if not graph.fact(operand).finite:
            graph.caveat(
                f"an infinite or NaN operand of {_words(node)} gives {number:g} instead of NaN"
            )
    else:
        made = graph.call(aten.sub.Tensor, (operand, operand), before=node)
        graph.note(
            made, f"{_words(node)} over one element is {number:g}; x - x keeps NaN for infinite x."
        )
        if number:
            made = graph.call(aten.add.Tensor, (made, number), before=node)
    graph.replace(result, made)


def _kind(graph: Graph, node: Node) -> str | None:
    """``identity``, ``constant`` (softmax), ``difference`` (x - x), or None."""
    if is_op(node, aten.sub) and node.args[0] is node.args[1] and not node.kwargs:
        return (
            "difference" if graph.fact(node).floating and graph.fact(node.args[0]).finite else None
        )
    dims = dims_of(node) if is_op(node, *IDENTITIES, *SELECTING, *NORMALIZING) else None
    if dims is None or argument(node, "dtype") is not None or not graph.fact(node.args[0]).floating:
        return None
    shape = graph.fact(node.args[0]).shape
    if not shape or any(shape[d] != 1 for d in dims):
        return None
    return "constant" if is_op(node, *NORMALIZING) else "identity"


def _selected_values(graph: Graph, node: Node) -> Node | None:
    """The values of max or min along a dimension, when nobody asks for the indices."""
    users = graph.users(node)
    values = [u for u in users if u.target is operator.getitem and u.args[1] == 0]
    return values[0] if len(users) == len(values) == 1 and not graph.is_output(node) else None


def _same_value(graph: Graph, node: Node, operand: Node) -> Node:
    dims = dims_of(node) or ()
    if argument(node, "keepdim"):
        return operand
    made = operand
    for dim in sorted(dims, reverse=True):
        made = graph.call(aten.squeeze.dim, (made, dim), before=node)
    graph.note(made, f"{_words(node)} over a dimension of size 1 is its only element.")
    return made


def _words(node: Node) -> str:
    return "x - x" if is_op(node, aten.sub) else str(node.target._opname)
