"""Pointwise ops that cannot change any value in the proved range, and clamps that merge or
settle."""

from __future__ import annotations

import math

from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    clamp_bounds,
    cost,
    insert_full,
    is_op,
    lost_gradients,
    proof,
    without_gradients,
)

CLAMPS = (aten.clamp, aten.clip, aten.hardtanh, aten.relu6, aten.clamp_min, aten.clamp_max)
SETTLED = (aten.relu, aten.sigmoid, aten.softmax, aten.exp, aten.square)
"""Values of at least 0 whose own gradient is 0 where they are 0: a ReLU behind them changes no
gradient."""
NEVER_MINUS_ZERO = (aten.abs, aten.sigmoid, aten.softmax, aten.exp, aten.square)
ROUNDING = (aten.floor, aten.ceil, aten.trunc, aten.round)
RECTIFIERS = (aten.leaky_relu, aten.elu, aten.celu)
"""x where it is positive, and nothing positive elsewhere."""
POINTWISE = (aten.relu, *RECTIFIERS, aten.abs, aten.minimum, aten.maximum, *ROUNDING, *CLAMPS)


parameters: dict[str, list[object]] = {}
ENDS = "at the ends of a range the gradients differ"


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        kind = _kind(graph, node)
        if kind is not None:
            found.append(
                Match(
                    nodes=(node,),
                    label=graph.label(node),
                    summary=_summary(node, kind),
                    benefit=cost.share(graph, cost.seconds(graph, node)),
                    data={"kind": kind},
                )
            )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    proofs = _proofs_of_values(graph, match)
    return proofs if _is_smooth(match) else [*proofs, *lost_gradients(graph, ENDS)]


def _is_smooth(match: Match) -> bool:
    """Whether the gradient is eager's too."""
    node = match.nodes[0]
    settled = is_op(node, aten.relu) and is_op(node.args[0], *SETTLED)
    return match.data["kind"] == "relu of rectifier" or settled


def _proofs_of_values(graph: Graph, match: Match) -> list[Proof]:
    node = match.nodes[0]
    before, after = graph.fact(node.args[0]), graph.fact(node)
    if match.data["kind"] == "constant":
        return [
            proof(
                "every value is the same number, and none is NaN",
                after.lo == after.hi and after.finite,
                f"range [{after.lo:g}, {after.hi:g}]",
            )
        ]
    if match.data["kind"] == "identity":
        return [
            proof(
                "the op changes no value in the range",
                True,
                f"operand in [{before.lo:g}, {before.hi:g}], NaN passes",
            )
        ]
    return [
        proof(
            "the inner op has one reader", graph.only_user(node.args[0]) is node, node.args[0].name
        )
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node, kind = match.nodes[0], match.data["kind"]
    if not _is_smooth(match):
        without_gradients(graph, ENDS)
    if kind == "identity":
        graph.replace(node, node.args[0])
    elif kind == "constant":
        _settle(graph, node)
    elif kind == "relu of rectifier":
        inner = node.args[0]
        made = graph.call(aten.relu.default, (node.args[0].args[0],), before=node)
        graph.note(
            made,
            f"{inner.target._opname} only changes negative values, which this ReLU removes anyway.",
        )
        graph.replace(node, made)
    else:
        merged = _merge_clamps(graph, node)
        assert merged is not None, "matched because the bounds merge"
        low, high = merged
        bounds = [None if math.isinf(bound) else bound for bound in (low, high)]
        made = graph.call(aten.clamp.default, (node.args[0].args[0], *bounds), before=node)
        graph.note(made, "Two clamps in a row are one.")
        graph.replace(node, made)


def _settle(graph: Graph, node: Node) -> None:
    made = insert_full(graph, node, graph.fact(node).lo)
    graph.note(
        made, f"Every value here is {graph.fact(node).lo:g}: the ranges above leave nothing else."
    )
    graph.replace(node, made)


def _kind(graph: Graph, node: Node) -> str | None:
    if (
        not is_op(node, *POINTWISE)
        or not graph.fact(node).floating
        or not isinstance(node.args[0], Node)
    ):
        return None
    before, after = graph.fact(node.args[0]), graph.fact(node)
    if (
        before.shape == after.shape
        and before.dtype == after.dtype
        and _changes_nothing(graph, node)
    ):
        return "identity"
    if after.lo == after.hi and after.finite:
        return "constant"
    inner = node.args[0]
    if graph.only_user(inner) is not node:
        return None
    if is_op(node, aten.relu) and _rectifies(inner):
        return "relu of rectifier"
    return (
        "clamp of clamp"
        if is_op(node, *CLAMPS) and is_op(inner, *CLAMPS) and _merge_clamps(graph, node)
        else None
    )


def _rectifies(node: Node) -> bool:
    """x where it is positive; negative or zero, and never NaN, where it is not."""
    if is_op(node, aten.leaky_relu):
        return bool(argument(node, "negative_slope") > 0)
    if is_op(node, aten.elu):
        return bool(
            argument(node, "alpha") > 0
            and argument(node, "scale") == argument(node, "input_scale") == 1
        )
    return is_op(node, aten.celu) and bool(argument(node, "alpha") > 0)


def _changes_nothing(graph: Graph, node: Node) -> bool:
    """NaN passes through each of these ops, so only the range matters."""
    before = graph.fact(node.args[0])
    if is_op(node, aten.abs):  # abs(-0.0) is 0.0, and a reciprocal tells them apart
        return before.lo > 0 or (before.lo >= 0 and is_op(node.args[0], *NEVER_MINUS_ZERO))
    if is_op(node, *ROUNDING):
        return before.integer and not argument(node, "decimals")
    if is_op(node, aten.relu):
        return before.lo >= 0
    if is_op(node, *RECTIFIERS):
        return before.lo >= 0 and _rectifies(node)
    if is_op(node, aten.minimum, aten.maximum):
        other = graph.fact(node.args[1])
        apart = before.hi <= other.lo if is_op(node, aten.minimum) else before.lo >= other.hi
        return apart and not other.may_be_nan
    bounds = clamp_bounds(before.dtype, lambda name: argument(node, name))
    return bounds is not None and bounds[0] <= before.lo and before.hi <= bounds[1]


def _merge_clamps(graph: Graph, node: Node) -> tuple[float, float] | None:
    """clamp(clamp(x, a, b), c, d) = clamp(x, clamp(a, c, d), clamp(b, c, d)) when a <= b and c <=
    d."""
    dtype = graph.fact(node).dtype
    inner = clamp_bounds(dtype, lambda name: argument(node.args[0], name))
    outer = clamp_bounds(dtype, lambda name: argument(node, name))
    if inner is None or outer is None or inner[0] > inner[1] or outer[0] > outer[1]:
        return None
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    return low, high


def _summary(node: Node, kind: str) -> str:
    name = node.target._opname
    if kind == "identity":
        return f"drop a {name} that changes no value"
    return f"write {name} as its constant" if kind == "constant" else f"merge {kind}"
