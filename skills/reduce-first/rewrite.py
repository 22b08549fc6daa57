"""Pointwise work after a pool or a reduction instead of before it: the same values, fewer
elements."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.algebra import monotone, pools
from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    dims_of,
    is_number,
    is_op,
    lost_gradients,
    proof,
    without_gradients,
)

TIES = "values that became equal would share or pass on the gradient differently"
EXTREMES = (aten.amax, aten.amin, aten.max, aten.min)
parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class MovedReduction:
    node: Node
    result: Node
    """The node itself, or the values of ``max(dim)``."""
    kind: str
    """``extreme`` (maximum or minimum) or ``mean``."""
    dims: tuple[int, ...]
    keepdim: bool
    padded: bool
    """Some windows hold zeros from outside."""


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        reduction = _reduction(graph, node)
        chain = _chain(graph, reduction) if reduction is not None else []
        if reduction is None or not chain:
            continue
        ratio = graph.fact(reduction.result).numel / max(1, graph.fact(chain[0]).numel)
        saved = sum(cost.seconds(graph, item) for item in chain)
        left = sum(ratio * _moving(graph, item) + cost.rates(graph).overhead_s for item in chain)
        words = ", ".join(dict.fromkeys(item.target._opname for item in chain))
        found.append(
            Match(
                nodes=(*chain, node),
                label=graph.label(*chain, node),
                summary=f"do {words} after {node.target._opname}, on fewer elements",
                benefit=cost.share(graph, saved - left) if ratio < 1 else 0.0,
                data={"chain": chain, "reduction": reduction},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    chain, reduction = match.data["chain"], match.data["reduction"]
    names = ", ".join(item.name for item in chain)
    if reduction.kind == "extreme":
        claim, why = (
            "every step keeps the order of values, and NaN",
            f"{names}: none ever decreases",
        )
    else:
        claim, why = (
            "every step is affine and the same for all that is averaged",
            f"{names}: numbers or broadcast",
        )
    alone = all(len(graph.users(item)) == 1 and not graph.is_output(item) for item in chain)
    return [
        proof(claim, True, why),
        proof("nobody else reads the steps in between", alone, f"{names} have one reader each"),
        *(lost_gradients(graph, TIES) if reduction.kind == "extreme" else []),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    chain: list[Node] = match.data["chain"]
    reduction: MovedReduction = match.data["reduction"]
    here = reduction.result
    made = _again(graph, reduction, _operand(chain[0]), here)
    graph.note(made, _reason(chain, reduction))
    for item in chain:
        args = tuple(made if arg is _operand(item) else arg for arg in item.args)
        made = graph.call(item.target, args, item.kwargs, before=here)
    if _is_squeezed(reduction):
        for dim in sorted(reduction.dims, reverse=True):
            made = graph.call(aten.squeeze.dim, (made, dim), before=here)
    if reduction.kind == "extreme":
        without_gradients(graph, TIES)
        if any(
            isinstance(arg, Node) and arg is not _operand(item)
            for item in chain
            for arg in item.args
        ):
            graph.caveat("an infinite parameter can give NaN for other windows")
    else:
        graph.caveat("an average is scaled or shifted after rounding instead of before")
    graph.replace(here, made)


# --- what is matched ---------------------------------------------------------------------


def _reduction(graph: Graph, node: Node) -> MovedReduction | None:
    if (pool := pools.maximum(node)) is not None:
        dims = tuple(range(2, 2 + len(pool.axes)))
        return MovedReduction(
            node=node, result=node, kind="extreme", dims=dims, keepdim=True, padded=False
        )
    if (pool := pools.average(node)) is not None:
        inside = all(
            a.padding == 0 and (a.out - 1) * a.stride + a.kernel <= a.size for a in pool.axes
        )
        dims = tuple(range(2, 2 + len(pool.axes)))
        return MovedReduction(
            node=node, result=node, kind="mean", dims=dims, keepdim=True, padded=not inside
        )
    if not is_op(node, *EXTREMES, aten.mean) or (dims_ := dims_of(node)) is None:
        return None
    if argument(node, "dtype") is not None or not graph.fact(node.args[0]).floating:
        return None
    result = node
    if is_op(node, aten.max, aten.min):
        users = graph.users(node)
        if len(users) != 1 or users[0].target is not operator.getitem or users[0].args[1] != 0:
            return None
        result = users[0]
    kind = "mean" if is_op(node, aten.mean) else "extreme"
    keepdim = bool(argument(node, "keepdim"))
    return MovedReduction(
        node=node, result=result, kind=kind, dims=dims_, keepdim=keepdim, padded=False
    )


def _chain(graph: Graph, reduction: MovedReduction) -> list[Node]:
    """The steps right before the reduction that may follow it, in order."""
    found: list[Node] = []
    value: Any = reduction.node.args[0]
    reader = reduction.node
    while (
        isinstance(value, Node)
        and graph.only_user(value) is reader
        and _may_follow(graph, value, reduction)
    ):
        found.insert(0, value)
        reader, value = value, _operand(value)
    return found


def _may_follow(graph: Graph, node: Node, reduction: MovedReduction) -> bool:
    step = monotone.affine(node)
    if step is None:
        return reduction.kind == "extreme" and monotone.rising(graph, node)
    number = is_number(step.other)
    if not number and not _same_for_all(graph, node, step.other, reduction):
        return False
    if step.kind in ("add", "sub"):
        return not reduction.padded and (
            reduction.kind == "mean" or number or _keeps_nan(graph, step)
        )
    return reduction.kind == "mean" or (number and step.other > 0)


def _keeps_nan(graph: Graph, step: monotone.Affine) -> bool:
    """inf - inf is NaN in one element that is not the largest, and the largest of all would be NaN
    by it. Parameters count as finite: a layer with an infinite one has no other results."""
    tensors = (step.value, step.other)
    return step.other in graph.state or not all(graph.fact(tensor).may_be_inf for tensor in tensors)


def _same_for_all(graph: Graph, node: Node, other: Node, reduction: MovedReduction) -> bool:
    """The operand does not vary along what is reduced."""
    rank = len(graph.fact(node).shape)
    shape = (1,) * (rank - len(graph.fact(other).shape)) + graph.fact(other).shape
    return all(shape[dim] == 1 for dim in reduction.dims)


def _operand(node: Node) -> Any:
    step = monotone.affine(node)
    return step.value if step is not None else node.args[0]


def _moving(graph: Graph, node: Node) -> float:
    return cost.seconds(graph, node) - cost.rates(graph).overhead_s


# --- what is written ---------------------------------------------------------------------


def _is_squeezed(reduction: MovedReduction) -> bool:
    return not reduction.keepdim


def _again(graph: Graph, reduction: MovedReduction, value: Node, here: Node) -> Node:
    """The reduction of an earlier value, with the reduced dimensions kept so that operands still
    fit."""
    node = reduction.node
    if is_op(node, *EXTREMES):
        op = aten.amax if is_op(node, aten.amax, aten.max) else aten.amin
        return graph.call(
            op.default, (value, list(reduction.dims), True), before=here, name="reduced"
        )
    if is_op(node, aten.mean):
        return graph.call(
            aten.mean.dim, (value, list(reduction.dims), True), before=here, name="reduced"
        )
    return graph.call(node.target, (value, *node.args[1:]), node.kwargs, before=here, name="pooled")


def _reason(chain: list[Node], reduction: MovedReduction) -> str:
    words = ", ".join(dict.fromkeys(item.target._opname for item in chain))
    if reduction.kind == "extreme":
        return (
            f"The largest stays the largest under {words}: reduce first, then work on fewer "
            f"elements."
        )
    return (
        f"An average of {words} is {words} of the average: reduce first, then work on fewer "
        f"elements."
    )
