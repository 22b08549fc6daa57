"""(A @ B) @ C = A @ (B @ C), whichever costs fewer operations."""

from __future__ import annotations

from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
    Graph,
    Match,
    Node,
    Proof,
    aten,
    cost,
    is_op,
    proof,
)

PRODUCTS = (aten.matmul, aten.mm)
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = []
    for outer in graph.nodes:
        for side in (0, 1) if is_op(outer, *PRODUCTS) else ():
            inner = outer.args[side]
            if not is_op(inner, *PRODUCTS) or graph.only_user(inner) is not outer:
                continue
            if (saved := _saved_flops(graph, inner, outer, side)) is not None:
                seconds = saved / cost.rates(graph).flops_per_s
                found.append(
                    Match(
                        nodes=(inner, outer),
                        label=graph.label(inner, outer),
                        summary="multiply a chain of matrices in the cheaper order",
                        benefit=cost.share(graph, seconds),
                        data={"side": side, "saved": saved},
                    )
                )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    inner, outer = match.nodes
    dtype = graph.fact(outer).dtype
    return [
        proof(
            "the inner product is used once",
            graph.only_user(inner) is outer,
            f"{inner.name} has one reader",
        ),
        proof(
            "the other order is cheaper",
            match.data["saved"] > 0,
            f"{match.data['saved']:.3g} operations less",
        ),
        proof("rounding stays in the same class", dtype in EXACT_DTYPES, f"dtype is {dtype}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    inner, outer = match.nodes
    if match.data["side"] == 0:
        tail = graph.call(aten.matmul.default, (inner.args[1], outer.args[1]), before=outer)
        made = graph.call(aten.matmul.default, (inner.args[0], tail), before=outer)
        graph.note(tail, "(A @ B) @ C = A @ (B @ C), and this order needs fewer operations.")
    else:
        head = graph.call(aten.matmul.default, (outer.args[0], inner.args[0]), before=outer)
        made = graph.call(aten.matmul.default, (head, inner.args[1]), before=outer)
        graph.note(head, "A @ (B @ C) = (A @ B) @ C, and this order needs fewer operations.")
    graph.caveat("products are summed in another order")
    graph.replace(outer, made)


def _saved_flops(graph: Graph, inner: Node, outer: Node, side: int) -> float | None:
    """Operations saved by the other order; None unless all are matrices (a vector may begin or end
    them)."""
    other = outer.args[1 - side]
    chain = [*inner.args[:2], other] if side == 0 else [other, *inner.args[:2]]
    shapes = [graph.fact(node).shape for node in chain]
    if len(shapes[0]) not in (1, 2) or len(shapes[1]) != 2 or len(shapes[2]) not in (1, 2):
        return None
    m, k = shapes[0] if len(shapes[0]) == 2 else (1, *shapes[0])
    n = shapes[1][1]
    p = shapes[2][1] if len(shapes[2]) == 2 else 1
    left, right = 2.0 * m * n * (k + p), 2.0 * k * p * (n + m)
    return left - right if side == 0 else right - left
