"""diag(a) @ B scales the rows of B by a; B @ diag(a) scales its columns."""

from __future__ import annotations

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
)

parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        side = _diagonal_side(graph, node)
        if side is None:
            continue
        diagonal = node.args[side]
        gone = cost.seconds(graph, node) + cost.seconds(graph, diagonal)
        scaling = 2 * graph.fact(node).numel * 4 / cost.rates(graph).bytes_per_s
        found.append(
            Match(
                nodes=(diagonal, node),
                label=graph.label(diagonal, node),
                summary=f"scale {'rows' if side == 0 else 'columns'}: no product with a "
                f"diagonal matrix",
                benefit=cost.share(graph, gone - scaling),
                data={"side": side},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    diagonal = match.nodes[0]
    vector = graph.fact(diagonal.args[0])
    main = argument(diagonal, "diagonal", argument(diagonal, "offset", 0)) in (0, None)
    return [
        proof(
            "the matrix is diagonal",
            is_op(diagonal, aten.diag, aten.diag_embed),
            f"{diagonal.name} is built by diag",
        ),
        proof(
            "it is built from a vector", len(vector.shape) == 1, f"operand has shape {vector.shape}"
        ),
        proof("the values stand on the main diagonal", main, "offset 0"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    diagonal, product = match.nodes
    vector = diagonal.args[0]
    if match.data["side"] == 0:
        column = graph.call(aten.unsqueeze.default, (vector, 1), before=product)
        made = graph.call(aten.mul.Tensor, (column, product.args[1]), before=product)
        graph.note(made, "diag(a) @ B multiplies row i of B by a[i].")
    else:
        made = graph.call(aten.mul.Tensor, (product.args[0], vector), before=product)
        graph.note(made, "B @ diag(a) multiplies column j of B by a[j].")
    graph.caveat(
        "0 * infinity off the diagonal is no longer computed: fewer NaN for infinite inputs"
    )
    graph.replace(product, made)


def _diagonal_side(graph: Graph, node: Node) -> int | None:
    """Which operand of a matrix product is a diagonal matrix made of a vector."""
    if not is_op(node, aten.matmul, aten.mm):
        return None
    for side, operand in enumerate(node.args[:2]):
        other = node.args[1 - side]
        if (
            is_op(operand, aten.diag, aten.diag_embed)
            and len(graph.fact(operand.args[0]).shape) == 1
            and len(graph.fact(other).shape) >= 2
        ):
            return side
    return None
