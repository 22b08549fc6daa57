"""sum(x @ W.T + b, features) = x @ sum(W, rows) + sum(b): a matrix-vector product."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
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
    scale_of,
)

PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.bmm)
parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class Chain:
    """product -> numbers multiplied or divided -> reduction."""

    product: Node
    scales: tuple[Node, ...]
    reduction: Node

    @property
    def mean(self) -> bool:
        return is_op(self.reduction, aten.mean)

    @property
    def keepdim(self) -> bool:
        return bool(argument(self.reduction, "keepdim"))


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        chain = _chain(graph, node)
        axis = _axis(graph, chain) if chain is not None else None
        if chain is None or axis is None:
            continue
        side = "matrix-vector product" if axis == "features" else "product of the reduced input"
        what = "mean" if chain.mean else "sum"
        found.append(
            Match(
                nodes=(chain.product, *chain.scales, node),
                label=graph.label(chain.product, node),
                summary=f"turn {chain.product.target._opname} and {what} into a {side}",
                benefit=cost.share(graph, _saved(graph, chain, axis)),
                data={"chain": chain, "axis": axis},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    chain: Chain = match.data["chain"]
    dtype = graph.fact(chain.product).dtype
    alone = all(graph.only_user(node) is not None for node in (chain.product, *chain.scales))
    return [
        proof(
            "every step from product to reduction is linear", True, "only products with numbers in between"
        ),
        proof("the product is used by the reduction alone", alone, f"{chain.product.name} has one reader"),
        proof("the folded weight keeps its precision", dtype in EXACT_DTYPES, f"dtype is {dtype}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    chain: Chain = match.data["chain"]
    made = _features(graph, chain) if match.data["axis"] == "features" else _rows(graph, chain)
    for node in chain.scales:
        _, kind, number = scale_of(node)
        made = graph.call(getattr(aten, kind).Tensor, (made, number), before=chain.reduction)
    graph.caveat("sums are taken in another order; infinite inputs can become NaN in other places")
    graph.replace(chain.reduction, made)


def _chain(graph: Graph, reduction: Node) -> Chain | None:
    if not is_op(reduction, aten.sum, aten.mean) or argument(reduction, "dtype") is not None:
        return None
    scales, node = [], reduction.args[0]
    while (scale := scale_of(node)) is not None and graph.only_user(node) is not None:
        scales.append(node)
        node = scale[0]
    if not is_op(node, *PRODUCTS) or graph.only_user(node) is None:
        return None
    return Chain(product=node, scales=tuple(reversed(scales)), reduction=reduction)


def _axis(graph: Graph, chain: Chain) -> str | None:
    """``features``: the last dimension is reduced; ``rows``: one before it that only the input has."""
    dims = dims_of(chain.reduction)
    rank = len(graph.fact(chain.product).shape)
    left, right = (len(graph.fact(node).shape) for node in chain.product.args[:2])
    if dims is None or len(dims) != 1 or left < 2 or right < 2:
        return None
    if dims[0] == rank - 1:
        return "features"
    if is_op(chain.product, aten.linear):
        bias = argument(chain.product, "bias")
        return "rows" if bias is None or chain.mean else None
    return "rows" if dims[0] == rank - 2 else None


def _saved(graph: Graph, chain: Chain, axis: str) -> float:
    """Seconds: what goes, less one pass over the operand that is reduced and one over the other."""
    gone = sum(cost.seconds(graph, node) for node in (chain.product, *chain.scales, chain.reduction))
    rates = cost.RATES[graph.device]
    moved = sum(graph.fact(node).numel * 4 for node in chain.product.args[:2])
    shape = graph.fact(chain.product).shape
    reduced = graph.fact(chain.product).numel / (
        shape[-1] if axis == "features" else shape[dims_of(chain.reduction)[0]]
    )
    inner = graph.fact(chain.product.args[0]).shape[-1]
    work = 2 * reduced * inner / rates.flops_per_s
    return gone - max(moved / rates.bytes_per_s, work) - 3 * rates.overhead_s


def _features(graph: Graph, chain: Chain) -> Node:
    left, right = chain.product.args[:2]
    here, fold = chain.reduction, aten.mean.dim if chain.mean else aten.sum.dim_IntList
    word = "mean" if chain.mean else "sum"
    if is_op(chain.product, aten.linear):
        folded = graph.call(fold, (right, [0]), before=here, name=f"weight_{word}")
        made = graph.call(aten.matmul.default, (left, folded), before=here)
        graph.note(folded, f"{word}(x @ W.T + b) over output features is x @ {word}(W) + {word}(b).")
        graph.note(folded, "Folded on each call, so training and load_state_dict stay right.")
        if (bias := argument(chain.product, "bias")) is not None:
            total = graph.call(aten.mean.default if chain.mean else aten.sum.default, (bias,), before=here)
            made = graph.call(aten.add.Tensor, (made, total), before=here)
        return graph.call(aten.unsqueeze.default, (made, -1), before=here) if chain.keepdim else made
    keep = len(graph.fact(right).shape) > 2
    folded = graph.call(fold, (right, [-1], keep), before=here, name=f"column_{word}")
    graph.note(folded, f"{word}(A @ B) over the columns of B is A @ {word}(B).")
    made = graph.call(aten.matmul.default, (left, folded), before=here)
    if keep == chain.keepdim:
        return made
    op = aten.squeeze.dim if keep else aten.unsqueeze.default
    return graph.call(op, (made, -1), before=here)


def _rows(graph: Graph, chain: Chain) -> Node:
    left, right = chain.product.args[:2]
    here, fold = chain.reduction, aten.mean.dim if chain.mean else aten.sum.dim_IntList
    word = "mean" if chain.mean else "sum"
    dim = dims_of(chain.reduction)[0]
    linear = is_op(chain.product, aten.linear)
    keep = chain.keepdim or not linear
    folded = graph.call(fold, (left, [dim if linear else -2], keep), before=here, name=f"row_{word}")
    graph.note(folded, f"{word}(A @ B) over the rows of A is {word}(A) @ B: reduce first, multiply less.")
    if linear:
        rest = chain.product.args[2:]
        return graph.call(aten.linear.default, (folded, right, *rest), before=here)
    made = graph.call(aten.matmul.default, (folded, right), before=here)
    return made if chain.keepdim else graph.call(aten.squeeze.dim, (made, -2), before=here)
