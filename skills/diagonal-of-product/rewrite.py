"""The diagonal of A @ B is the sums of A * B.T over rows, and its trace is the sum of all of
that."""

from __future__ import annotations

from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
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
        if not _is_diagonal(graph, node) or (product := _product(graph, node)) is None:
            continue
        saved = _saved_seconds(graph, product, node)
        found.append(
            Match(
                nodes=(product, node),
                label=graph.label(product, node),
                summary=f"{node.target._opname} of a product without the product",
                benefit=cost.share(graph, saved),
                data={},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    product, node = match.nodes
    dtypes = {graph.fact(item).dtype for item in (product, *product.args[:2])}
    ranks = [len(graph.fact(item).shape) for item in product.args[:2]]
    return [
        proof(
            "only the main diagonal is used",
            graph.only_user(product) is node,
            f"{node.name} is its reader",
        ),
        proof("both factors are matrices", min(ranks) >= 2, f"ranks {ranks}"),
        proof(
            "sums keep their digits",
            dtypes <= set(EXACT_DTYPES),
            ", ".join(sorted(map(str, dtypes))),
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    product, node = match.nodes
    left, right = product.args[:2]
    rows, cols = graph.fact(left).shape[-2], graph.fact(right).shape[-1]
    if rows > cols:
        left = graph.call(aten.slice.Tensor, (left, -2, 0, cols), before=node)
    if cols > rows:
        right = graph.call(aten.slice.Tensor, (right, -1, 0, rows), before=node)
    turned = graph.call(aten.transpose.int, (right, -2, -1), before=node)
    terms = graph.call(aten.mul.Tensor, (left, turned), before=node, name="products")
    if is_op(node, aten.trace):
        made = graph.call(aten.sum.default, (terms,), before=node)
        graph.note(terms, "trace(A @ B) is the sum of A * B.T.")
    else:
        made = graph.call(aten.sum.dim_IntList, (terms, [-1]), before=node)
        graph.note(terms, "Element i of diagonal(A @ B) is the sum over row i of A * B.T.")
    graph.replace(node, made)


def _is_diagonal(graph: Graph, node: Node) -> bool:
    """trace, or the main diagonal over the last two dimensions."""
    if is_op(node, aten.trace):
        return True
    if not is_op(node, aten.diagonal, aten.diag):
        return False
    rank = len(graph.fact(node.args[0]).shape)
    dims = {argument(node, "dim1", 0) % rank, argument(node, "dim2", 1) % rank}
    main = argument(node, "offset", argument(node, "diagonal", 0)) == 0
    return main and rank >= 2 and dims == {rank - 2, rank - 1}


def _product(graph: Graph, node: Node) -> Node | None:
    """The matrix product that the node alone reads."""
    product = node.args[0]
    plain = is_op(product, aten.matmul, aten.mm, aten.bmm) and graph.only_user(product) is node
    return (
        product
        if plain and min(len(graph.fact(item).shape) for item in product.args[:2]) >= 2
        else None
    )


def _saved_seconds(graph: Graph, product: Node, node: Node) -> float:
    """The product, less one pass that multiplies and one that adds."""
    rates = cost.rates(graph)
    terms = max(cost.moved_bytes_of(graph, item) for item in product.args[:2])
    made = 4 * terms / rates.bytes_per_s + 2 * rates.overhead_s
    return cost.seconds(graph, product) + cost.seconds(graph, node) - made
