"""Attention whose products are written as einsum, with matmul instead."""

from __future__ import annotations

from dataclasses import dataclass

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
    tensor,
)

parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class Product:
    """An einsum as a product of [batch, rows, inner] and [batch, inner, columns]."""

    left: tuple[int, ...]
    """Order of the first factor's dimensions."""
    right: tuple[int, ...]
    result: tuple[int, ...]
    """Order of the product's dimensions."""


def match(graph: Graph) -> list[Match]:
    found = []
    for softmax in graph.nodes:
        pair = _around(graph, softmax)
        if pair is None:
            continue
        found.append(
            Match(
                nodes=pair,
                label=graph.label(*pair),
                summary="write the attention's two einsums as matrix products",
                benefit=cost.share(graph, 2 * cost.rates(graph).overhead_s),
                data={"pair": pair},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return [
        proof(
            "the equation is one matrix product for each batch",
            product(node) is not None,
            f"{node.name}: {argument(node, 'equation')}",
        )
        for node in match.data["pair"]
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    for node in match.data["pair"]:
        form = product(node)
        assert form is not None
        left, right = argument(node, "tensors")
        factors = (
            _order_dims(graph, left, form.left, node),
            _order_dims(graph, right, form.right, node),
        )
        made = graph.call(aten.matmul.default, factors, before=node)
        graph.note(made, f"This is einsum({argument(node, 'equation')!r}).")
        graph.replace(node, _order_dims(graph, made, form.result, node))


def product(node: Node) -> Product | None:
    """None when the einsum is anything else than one product of two tensors of rank 3 or 4 for
    each batch."""
    terms = _plain_terms(str(argument(node, "equation")).replace(" ", ""))
    if terms is None:
        return None
    left, right, out = terms
    batch = [label for label in left if label in right and label in out]
    rows, cols = _own(left, right, out), _own(right, left, out)
    inner = [label for label in left if label in right and label not in out]
    is_single = len(rows) == len(cols) == len(inner) == 1
    if not is_single or {len(left), len(right), len(out)} != {len(batch) + 2}:
        return None
    made = [*batch, *rows, *cols]
    return Product(
        left=tuple(map(left.index, [*batch, *rows, *inner])),
        right=tuple(map(right.index, [*batch, *inner, *cols])),
        result=tuple(map(made.index, out)),
    )


def _plain_terms(equation: str) -> tuple[str, str, str] | None:
    """(left, right, result) of two tensors of rank 3 or 4, each label once in a term."""
    given, arrow, out = equation.partition("->")
    names = [*given.split(","), out]
    if not arrow or len(names) != 3 or not all(name.isalpha() for name in names):
        return None
    left, right, _ = names
    repeats = any(len(set(name)) != len(name) for name in names)
    return None if repeats or len(left) not in (3, 4) else (left, right, out)


def _own(term: str, other: str, out: str) -> list[str]:
    """Labels of the result that one term has alone."""
    return [label for label in term if label not in other and label in out]


def _around(graph: Graph, softmax: Node) -> tuple[Node, Node] | None:
    """The einsum that a softmax's operand comes from, step by step, and the one that reads its
    result."""
    if not is_op(softmax, aten.softmax):
        return None
    rank = graph.val(softmax).dim()
    second = graph.only_user(softmax)
    while second is not None and is_op(second, aten.dropout, aten.to):
        second = graph.only_user(second)
    first = softmax.args[0]
    while tensor(first) and not is_op(first, aten.einsum):
        if graph.val(first).shape != graph.val(softmax).shape or not first.all_input_nodes:
            return None
        first = first.all_input_nodes[0]
    if second is None or not tensor(first) or not is_op(second, aten.einsum):
        return None
    last = argument(softmax, "dim") in (-1, rank - 1)
    whole = all(
        len(argument(node, "tensors")) == 2 and product(node) is not None
        for node in (first, second)
    )
    return (first, second) if last and whole else None


def _order_dims(graph: Graph, factor: Node, order: tuple[int, ...], before: Node) -> Node:
    plain = tuple(range(len(order)))
    if order == plain:
        return factor
    if order == (*plain[:-2], plain[-1], plain[-2]):
        return graph.call(aten.transpose.int, (factor, -2, -1), before=before)
    return graph.call(aten.permute.default, (factor, list(order)), before=before)
