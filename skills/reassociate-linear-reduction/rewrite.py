"""sum(x @ W.T + b, features) = x @ sum(W, rows) + sum(b): a matrix-vector product."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.rewrite.algebra import monotone
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
    is_number,
    is_op,
    proof,
    scale_of,
)

PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.bmm)
parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class ProductChain:
    """product -> a vector added -> numbers multiplied or divided -> reduction."""

    product: Node
    shift: Node | None
    """The addition of a value for each output feature: a bias that stands outside of the
    product."""
    scales: tuple[Node, ...]
    reduction: Node

    @property
    def steps(self) -> tuple[Node, ...]:
        """What lies between the product and its reduction."""
        return (*([] if self.shift is None else [self.shift]), *self.scales)

    @property
    def bias(self) -> Node | None:
        if self.shift is None:
            return argument(self.product, "bias") if is_op(self.product, aten.linear) else None
        left, right = self.shift.args[:2]
        return right if left is self.product else left

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
                nodes=(chain.product, *chain.steps, node),
                label=graph.label(chain.product, node),
                summary=f"turn {chain.product.target._opname} and {what} into a {side}",
                benefit=cost.share(graph, _saved_seconds(graph, chain, axis)),
                data={"chain": chain, "axis": axis},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    chain: ProductChain = match.data["chain"]
    dtype = graph.fact(chain.product).dtype
    alone = all(graph.only_user(node) is not None for node in (chain.product, *chain.steps))
    return [
        proof(
            "every step from product to reduction is linear",
            True,
            "only products with numbers and a bias in between",
        ),
        proof(
            "the product is used by the reduction alone",
            alone,
            f"{chain.product.name} has one reader",
        ),
        proof("the folded weight keeps its precision", dtype in EXACT_DTYPES, f"dtype is {dtype}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    chain: ProductChain = match.data["chain"]
    made = _features(graph, chain) if match.data["axis"] == "features" else _rows(graph, chain)
    for node in chain.scales:
        _, kind, number = scale_of(node)
        made = graph.call(getattr(aten, kind).Tensor, (made, number), before=chain.reduction)
    graph.caveat("sums are taken in another order; infinite inputs can become NaN in other places")
    graph.replace(chain.reduction, made)


def _chain(graph: Graph, reduction: Node) -> ProductChain | None:
    if not is_op(reduction, aten.sum, aten.mean) or argument(reduction, "dtype") is not None:
        return None
    scales, node = [], reduction.args[0]
    while (scale := scale_of(node)) is not None and graph.only_user(node) is not None:
        scales.append(node)
        node = scale[0]
    shift, product = _find_shift(graph, node)
    if not is_op(product, *PRODUCTS) or graph.only_user(product) is None:
        return None
    return ProductChain(
        product=product, shift=shift, scales=tuple(reversed(scales)), reduction=reduction
    )


def _find_shift(graph: Graph, node: Node) -> tuple[Node | None, Node]:
    """The addition of a vector of one value for each feature, and the product that it is added
    to."""
    step = monotone.affine(node)
    if step is None or step.kind != "add" or is_number(step.other) or graph.only_user(node) is None:
        return None, node
    bare = not is_op(step.value, aten.linear) or argument(step.value, "bias") is None
    vector, value = graph.fact(step.other), graph.fact(node)
    fits = vector.shape == value.shape[-1:] and vector.dtype == value.dtype
    return (node, step.value) if bare and fits else (None, node)


def _axis(graph: Graph, chain: ProductChain) -> str | None:
    """``features``: the last dimension is reduced, perhaps with others; ``rows``: one before it
    that only the input has."""
    rank = len(graph.fact(chain.product).shape)
    dims = _dims(graph, chain)
    left, right = (len(graph.fact(node).shape) for node in chain.product.args[:2])
    if left < 2 or right < 2:
        return None
    if rank - 1 in dims:
        return "features"
    if len(dims) != 1 or not (chain.bias is None or chain.mean):
        return None
    return "rows" if is_op(chain.product, aten.linear) or dims[0] == rank - 2 else None


def _dims(graph: Graph, chain: ProductChain) -> tuple[int, ...]:
    """What is reduced, all dimensions if none is named."""
    dims = dims_of(chain.reduction)
    return tuple(range(len(graph.fact(chain.product).shape))) if dims is None else dims


def _saved_seconds(graph: Graph, chain: ProductChain, axis: str) -> float:
    """Seconds: what goes, less one pass over the operand that is reduced and one over the other."""
    gone = sum(cost.seconds(graph, node) for node in (chain.product, *chain.steps, chain.reduction))
    rates = cost.rates(graph)
    moved = sum(graph.fact(node).numel * 4 for node in chain.product.args[:2])
    shape = graph.fact(chain.product).shape
    reduced = (
        graph.fact(chain.product).numel
        / shape[-1 if axis == "features" else _dims(graph, chain)[0]]
    )
    inner = graph.fact(chain.product.args[0]).shape[-1]
    work = 2 * reduced * inner / rates.flops_per_s
    return gone - max(moved / rates.bytes_per_s, work) - 3 * rates.overhead_s


def _features(graph: Graph, chain: ProductChain) -> Node:
    here, fold = chain.reduction, aten.mean.dim if chain.mean else aten.sum.dim_IntList
    made = _fold_product(graph, chain)
    if chain.bias is not None:
        whole = aten.mean.default if chain.mean else aten.sum.default
        total = graph.call(whole, (chain.bias,), before=here)
        made = graph.call(aten.add.Tensor, (made, total), before=here)
    if chain.keepdim:
        made = graph.call(aten.unsqueeze.default, (made, -1), before=here)
    rest = list(_dims(graph, chain)[:-1])
    return graph.call(fold, (made, rest, chain.keepdim), before=here) if rest else made


def _fold_product(graph: Graph, chain: ProductChain) -> Node:
    """The product with the other factor's columns summed: the last dimension is gone."""
    left, right = chain.product.args[:2]
    here, fold = chain.reduction, aten.mean.dim if chain.mean else aten.sum.dim_IntList
    word = "mean" if chain.mean else "sum"
    if is_op(chain.product, aten.linear):
        folded = graph.call(fold, (right, [0]), before=here, name=f"weight_{word}")
        graph.note(
            folded, f"{word}(x @ W.T + b) over output features is x @ {word}(W) + {word}(b)."
        )
        graph.note(folded, "Folded on each call, so training and load_state_dict stay right.")
        return graph.call(aten.matmul.default, (left, folded), before=here)
    keep = len(graph.fact(right).shape) > 2
    folded = graph.call(fold, (right, [-1], keep), before=here, name=f"column_{word}")
    graph.note(folded, f"{word}(A @ B) over the columns of B is A @ {word}(B).")
    made = graph.call(aten.matmul.default, (left, folded), before=here)
    return graph.call(aten.squeeze.dim, (made, -1), before=here) if keep else made


def _rows(graph: Graph, chain: ProductChain) -> Node:
    left, right = chain.product.args[:2]
    here, fold = chain.reduction, aten.mean.dim if chain.mean else aten.sum.dim_IntList
    word = "mean" if chain.mean else "sum"
    dim = dims_of(chain.reduction)[0]
    linear = is_op(chain.product, aten.linear)
    keep = chain.keepdim or not linear
    folded = graph.call(
        fold, (left, [dim if linear else -2], keep), before=here, name=f"row_{word}"
    )
    graph.note(
        folded, f"{word}(A @ B) over the rows of A is {word}(A) @ B: reduce first, multiply less."
    )
    if linear:
        bias = () if chain.bias is None else (chain.bias,)
        return graph.call(aten.linear.default, (folded, right, *bias), before=here)
    made = graph.call(aten.matmul.default, (folded, right), before=here)
    if chain.bias is not None:
        made = graph.call(aten.add.Tensor, (made, chain.bias), before=here)
    return made if chain.keepdim else graph.call(aten.squeeze.dim, (made, -2), before=here)
