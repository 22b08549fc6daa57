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
    dims_of,
    is_op,
    proof,
    without_gradients,
)

WITHOUT = {aten.max: aten.amax, aten.min: aten.amin}
SHARE = 0.1
"""Of the operation's time; a guess. What follows from it, a fusion, is other skills' to
estimate."""
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
        proof(
            "nobody reads the indices",
            set(graph.users(node)) == set(values),
            f"{readers} reads values",
        ),
        proof("the values are floating-point numbers", fact.floating, f"{fact.dtype}"),
        proof(
            "no gradient would be shared among ties",
            (cancels := _cancels(graph, node, values)) or not graph.gradients,
            "softmax is the same for any shift: what the maximum gets adds up to zero"
            if cancels
            else "the dispatch guard takes the original path while gradients are recorded",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node, values = match.nodes[0], match.data["values"]
    kind = next(other for op, other in WITHOUT.items() if is_op(node, op))
    dim, keepdim = argument(node, "dim"), bool(argument(node, "keepdim"))
    cancels = _cancels(graph, node, values)
    made = graph.call(kind.default, (node.args[0], [dim], keepdim), before=node)
    graph.note(made, "The values alone: nobody reads the indices.")
    if not cancels:
        without_gradients(
            graph, "elements that tie share a gradient, where eager gives it to one of them"
        )
    for value in values:
        graph.replace(value, made)


def _cancels(graph: Graph, node: Node, values: list[Node]) -> bool:
    """No gradient passes, or the values only shift a softmax, or its logarithm, along their own
    dimension."""
    if any(graph.is_output(value) for value in values):
        return False
    if all(is_op(user, aten.detach) for value in values for user in graph.users(value)):
        return True
    x, dim = node.args[0], argument(node, "dim") % graph.val(node.args[0]).dim()
    shifts = [user for value in values for user in _find_readers(graph, value, dim)]
    return bool(shifts) and all(
        _is_shift(user, x) and _is_softmax(graph, user, dim) for user in shifts
    )


def _find_readers(graph: Graph, value: Node, dim: int) -> list[Node]:
    """Who reads a row's number, its dimension kept or brought back; nobody where it is missing."""
    reduction = value.args[0] if value.target is operator.getitem else value
    kept, found = bool(argument(reduction, "keepdim")), list[Node]()
    for user in graph.users(value):
        back = is_op(user, aten.unsqueeze) and argument(user, "dim") % graph.val(user).dim() == dim
        if graph.is_output(value) or (back and graph.is_output(user)):
            return []
        if back and not kept:
            found += graph.users(user)
        elif kept:
            found.append(user)
        else:
            return []
    return found


def _is_shift(user: Node, x: Node) -> bool:
    return is_op(user, aten.sub) and len(user.args) == 2 and not user.kwargs and user.args[0] is x


def _is_softmax(graph: Graph, shifted: Node, dim: int) -> bool:
    """exp(shifted) over its sum, or shifted minus that sum's logarithm, and nothing else is made
    of it."""
    exponential = _find_user(graph, shifted, aten.exp)
    total = _find_user(graph, exponential, aten.sum) if exponential is not None else None
    if total is None or graph.is_output(shifted) or graph.is_output(exponential):
        return False
    if dims_of(total) != (dim,) or argument(total, "dtype", None) is not None:
        return False
    sums = _find_readers(graph, total, dim)
    others = [*graph.users(shifted), *graph.users(exponential)]
    results = [user for user in others if user not in (exponential, total)]
    if len(results) != 1 or len(sums) != 1:
        return False
    return _is_normalized(graph, results[0], sums[0], {aten.div: exponential, aten.sub: shifted})


def _is_normalized(graph: Graph, result: Node, by: Node, dividends: dict[object, Node]) -> bool:
    """The quotient by the sum itself, or the difference to its logarithm."""
    if len(result.args) != 2 or result.kwargs:
        return False
    if is_op(result, aten.div):
        return result is by and result.args[0] is dividends[aten.div]
    is_shifted = is_op(result, aten.sub) and result.args[0] is dividends[aten.sub]
    return is_shifted and is_op(by, aten.log) and graph.only_user(by) is result


def _find_user(graph: Graph, node: Node, op: object) -> Node | None:
    return next((user for user in graph.users(node) if is_op(user, op)), None)


def _only_values(graph: Graph, node: Node) -> list[Node]:
    """Who takes the values of max or min along a dimension; nobody when anything else is asked
    for."""
    if not isinstance(argument(node, "dim"), int) or graph.is_output(node):
        return []
    users = list(graph.users(node))
    values = all(user.target is operator.getitem and user.args[1] == 0 for user in users)
    return users if values else []
