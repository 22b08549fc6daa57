"""The sum or mean of a (transposed) convolution's outputs from sums of its input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.algebra import convolution as conv
from kernel_lsp.rewrite.algebra import pools, tap_sums
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


@dataclass(frozen=True, kw_only=True)
class ConvolutionChain:
    """convolution -> numbers multiplied or divided -> reduction."""

    convolution: conv.Convolution
    scales: tuple[Node, ...]
    reduction: Node
    reduced: tuple[int, ...]
    """Spatial axes that are reduced, from 0."""
    others: tuple[int, ...]
    """Batch and channel dimensions that are reduced too."""
    mean: bool
    keepdim: bool

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(a for a in range(len(self.convolution.axes)) if a not in self.reduced)

    @property
    def outputs(self) -> int:
        """Outputs along the reduced axes."""
        return math.prod(self.convolution.axes[a].out for a in self.reduced)


@dataclass(frozen=True)
class AlongAxis:
    """A value that is summed along one dimension, before the node ``here``."""

    value: Node
    dim: int
    here: Node


@dataclass(frozen=True)
class Factors:
    """What the result is a product of, and what is added to it."""

    sums: Node
    weight: Node
    bias: Node | None


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    """``kernel``: one pass of a Triton kernel; ``plain``: PyTorch calls, which record gradients
    too."""
    return {"form": ["kernel", "plain"]} if _has_kernel(graph, match.data["chain"]) else {}


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        chain = _chain(graph, node)
        if chain is None:
            continue
        done = "mean" if chain.mean else "sum"
        what = chain.convolution.node.target._opname
        found.append(
            Match(
                nodes=(chain.convolution.node, *chain.scales, node),
                label=graph.label(chain.convolution.node, node),
                summary=f"take the {done} of {what} from sums of its input",
                benefit=cost.share(graph, _saved_seconds(graph, chain)),
                plain=not _has_kernel(graph, chain),
                data={"chain": chain},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    chain: ConvolutionChain = match.data["chain"]
    made = chain.convolution
    alone = all(graph.only_user(node) is not None for node in (made.node, *chain.scales))
    dtypes = {graph.fact(node).dtype for node in (made.input, made.weight, chain.reduction)}
    met = [conv.positions(made.axes[a], made.transposed) for a in chain.reduced]
    words = "; ".join(
        f"axis {a}: {_words(taps)}" for a, taps in zip(chain.reduced, met, strict=True)
    )
    return [
        proof(
            "every step to the reduction is linear", True, "only products with numbers in between"
        ),
        proof(
            "the convolution is used by the reduction alone",
            alone,
            f"{made.node.name} has one reader",
        ),
        proof("each tap meets a known run of inputs", True, words),
        proof(
            "sums keep the error class",
            dtypes <= set(EXACT_DTYPES),
            f"dtypes {sorted(map(str, dtypes))}",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    chain: ConvolutionChain = match.data["chain"]
    here = chain.reduction
    kernel = _has_kernel(graph, chain) and parameters.get("form", "kernel") == "kernel"
    sums, weight = _kernel_sums(graph, chain) if kernel else _plain_sums(graph, chain)
    if chain.mean and not kernel:  # the kernel divides by itself
        sums = graph.call(aten.div.Tensor, (sums, chain.outputs), before=here)
    made = _product(graph, chain, sums, weight)
    for node in chain.scales:
        _, kind, number = scale_of(node)  # type: ignore[misc]
        made = graph.call(getattr(aten, kind).Tensor, (made, number), before=here)
    graph.caveat("sums are taken in another order; infinite inputs can become NaN in other places")
    graph.replace(here, _restore_shape(graph, chain, made))


# --- what is matched ---------------------------------------------------------------------


def _chain(graph: Graph, reduction: Node) -> ConvolutionChain | None:
    found = _reduction(reduction)
    if found is None:
        return None
    dims, mean, keepdim = found
    scales: list[Node] = []
    node: Any = reduction.args[0]
    while (scale := scale_of(node)) is not None and graph.only_user(node) is not None:
        scales.append(node)
        node = scale[0]
    made = conv.read(node)
    if made is None or graph.only_user(node) is None or 0 in graph.fact(node).shape:
        return None
    reduced = tuple(d - 2 for d in dims if d >= 2)
    if not reduced:
        return None
    return ConvolutionChain(
        convolution=made,
        scales=tuple(reversed(scales)),
        reduction=reduction,
        reduced=reduced,
        others=tuple(d for d in dims if d < 2),
        mean=mean,
        keepdim=keepdim,
    )


def _reduction(node: Node) -> tuple[tuple[int, ...], bool, bool] | None:
    """(dimensions, is it a mean, keepdim)."""
    if not is_op(node, aten.sum, aten.mean, *pools.AVERAGE, *pools.ADAPTIVE) or not isinstance(
        node.args[0], Node
    ):
        return None
    rank = node.args[0].meta["val"].dim()
    if is_op(node, aten.sum, aten.mean):
        if argument(node, "dtype") is not None:
            return None
        dims = dims_of(node)
        return dims or tuple(range(rank)), is_op(node, aten.mean), bool(argument(node, "keepdim"))
    shape, out = node.args[0].meta["val"].shape, node.meta["val"].shape
    if is_op(node, *pools.AVERAGE):
        window = conv.spread(argument(node, "kernel_size"), rank - 2)
        plain = set(conv.spread(argument(node, "padding"), rank - 2)) == {0}
        if (
            tuple(window) != tuple(shape[2:])
            or not plain
            or argument(node, "divisor_override") is not None
        ):
            return None
    return (tuple(range(2, rank)), True, True) if set(out[2:]) == {1} else None


def _has_kernel(graph: Graph, chain: ConvolutionChain) -> bool:
    """Worth a kernel when some tap misses some input; otherwise one library sum does it."""
    made = chain.convolution
    edges = not all(_uniform(made, axis) for axis in chain.reduced)
    return graph.device == "cuda" and not chain.kept and edges and tap_sums.fits(made)


def _uniform(made: conv.Convolution, axis: int) -> bool:
    """Every tap meets every input of the axis."""
    here = made.axes[axis]
    return all(met == range(here.size) for met in conv.positions(here, made.transposed))


def _words(taps: tuple[range, ...]) -> str:
    return ", ".join(
        f"tap {k} meets {r.start}:{r.stop}:{r.step}" for k, r in enumerate(taps[:3])
    ) + (", …" if len(taps) > 3 else "")


def _saved_seconds(graph: Graph, chain: ConvolutionChain) -> float:
    """Seconds: what goes, less one pass over input and weight (one a tap without the kernel)."""
    made, rates = chain.convolution, cost.rates(graph)
    gone = conv.library_seconds(graph, made)
    gone += sum(cost.seconds(graph, node) for node in (*chain.scales, chain.reduction))
    edges = [axis for axis in chain.reduced if not _uniform(made, axis)]
    reads, launches = 1.0, 4
    if not _has_kernel(graph, chain) and edges:
        reads, launches = 1.2, 4 + 6 * len(edges)
    moved = reads * cost.moved_bytes_of(graph, made.input) + 3 * cost.moved_bytes_of(
        graph, made.weight
    )
    work = cost.flops(made.node) / chain.outputs
    return (
        gone
        - max(moved / rates.bytes_per_s, work / rates.flops_per_s)
        - launches * rates.overhead_s
    )


# --- sums of the input -------------------------------------------------------------------


def _kernel_sums(graph: Graph, chain: ConvolutionChain) -> tuple[Node, Node]:
    """(sums (N, C, *kernel), weight as it is)."""
    made = chain.convolution
    generated = tap_sums.kernel(graph, made, chain.outputs if chain.mean else None)
    value = graph.val(made.input)
    with value.fake_mode:
        like = value.new_empty((*value.shape[:2], *(axis.kernel for axis in made.axes)))
    sums = graph.call_generated(
        generated, (made.input,), like=like, before=chain.reduction, name="tap_sums"
    )
    _explain(graph, chain, sums)
    return sums, made.weight


def _plain_sums(graph: Graph, chain: ConvolutionChain) -> tuple[Node, Node]:
    """(sums by tap of the reduced axes, weight with those taps added up that meet the same
    inputs)."""
    made, here = chain.convolution, chain.reduction
    sums, weight = made.input, made.weight
    same = [axis for axis in chain.reduced if _uniform(made, axis)]
    if same:
        dims = [axis + 2 for axis in same]
        sums = graph.call(aten.sum.dim_IntList, (sums, dims, True), before=here, name="input_sum")
        weight = graph.call(aten.sum.dim_IntList, (weight, dims, True), before=here, name="weight")
    for axis in reversed(chain.reduced):
        if axis not in same:
            taps = conv.positions(made.axes[axis], made.transposed)
            sums = _by_tap(graph, AlongAxis(sums, axis + 2, here), taps)
    _explain(graph, chain, sums)
    return sums, weight


def _by_tap(graph: Graph, along: AlongAxis, taps: tuple[range, ...]) -> Node:
    """Sums along one dimension, one for each tap in its place: the shared middle once, the edges
    for each."""
    inner = range(max(met.start for met in taps), min(met.stop for met in taps))
    strided = any(met.step > 1 and len(met) > 1 for met in taps)
    if strided or len(inner) < 2:
        made = {met: _span(graph, along, met) for met in dict.fromkeys(taps)}
    else:
        made = _around_middle(graph, along, taps, inner)
    return graph.call(
        aten.cat.default, ([made[met] for met in taps], along.dim), before=along.here,
        name="tap_sums",
    )  # fmt: skip


def _around_middle(
    graph: Graph, along: AlongAxis, taps: tuple[range, ...], inner: range
) -> dict[range, Node]:
    """Sums of what each tap meets: the middle that all meet, and the tap's own edges."""
    middle = _span(graph, along, inner)
    middle.meta["name"] = "middle"
    made = {}
    for met in dict.fromkeys(taps):
        total = middle
        for edge in (range(met.start, inner.start), range(inner.stop, met.stop)):
            if len(edge):
                more = _span(graph, along, edge)
                total = graph.call(aten.add.Tensor, (total, more), before=along.here)
        made[met] = total
        if total is not middle:
            total.meta["name"] = "with_edge"
    return made


def _span(graph: Graph, along: AlongAxis, met: range) -> Node:
    """The sum of some positions of a dimension, which stays with size 1."""
    value, dim = along.value, along.dim
    size = graph.fact(value).shape[dim]
    if met != range(size):
        rest = (met.start, met.stop) if met.step == 1 else (met.start, met.stop, met.step)
        value = graph.call(aten.slice.Tensor, (value, dim, *rest), before=along.here)
    if len(met) == 1:
        return value
    return graph.call(aten.sum.dim_IntList, (value, [dim], True), before=along.here)


def _explain(graph: Graph, chain: ConvolutionChain, sums: Node) -> None:
    done = "mean" if chain.mean else "sum"
    graph.note(
        sums,
        f"The {done} of a convolution's outputs needs only, for each tap of its kernel, the sum",
    )
    graph.note(
        sums, "of the inputs which that tap meets: padding and stride decide which these are."
    )


# --- sums times weight -------------------------------------------------------------------


def _product(graph: Graph, chain: ConvolutionChain, sums: Node, weight: Node) -> Node:
    """(N, out) when no spatial axis is left, else a convolution over those that are."""
    made, here = chain.convolution, chain.reduction
    bias = made.bias
    if bias is not None and not chain.mean:
        bias = graph.call(aten.mul.Tensor, (bias, chain.outputs), before=here)
    if chain.kept:
        return _smaller_convolution(graph, chain, Factors(sums, weight, bias))
    if made.groups == 1:
        sums = graph.call(aten.flatten.using_ints, (sums, 1), before=here)
        if made.transposed:
            weight = graph.call(aten.transpose.int, (weight, 0, 1), before=here)
        weight = graph.call(aten.flatten.using_ints, (weight, 1), before=here)
        return graph.call(aten.linear.default, (sums, weight, bias), before=here)
    return _group_sums(graph, chain, Factors(sums, weight, bias))


def _group_sums(graph: Graph, chain: ConvolutionChain, factors: Factors) -> Node:
    sums, weight, bias = factors.sums, factors.weight, factors.bias
    made, here, groups = chain.convolution, chain.reduction, chain.convolution.groups
    inside, outside = made.in_channels // groups, made.out_channels // groups
    sums = graph.call(
        aten.reshape.default, (sums, [-1, groups, inside, _taps(graph, sums)]), before=here
    )
    shape = [groups, inside, outside, -1] if made.transposed else [groups, outside, inside, -1]
    weight = graph.call(aten.reshape.default, (weight, shape), before=here)
    rule = "ngik,giok->ngo" if made.transposed else "ngik,goik->ngo"
    product = graph.call(aten.einsum.default, (rule, [sums, weight]), before=here)
    product = graph.call(aten.flatten.using_ints, (product, 1), before=here)
    return product if bias is None else graph.call(aten.add.Tensor, (product, bias), before=here)


def _taps(graph: Graph, sums: Node) -> int:
    return math.prod(graph.fact(sums).shape[2:])


def _smaller_convolution(graph: Graph, chain: ConvolutionChain, factors: Factors) -> Node:
    """Taps of the reduced axes become input channels of a convolution over the kept ones."""
    sums, weight, bias = factors.sums, factors.weight, factors.bias
    made, here = chain.convolution, chain.reduction
    order = [0, 1, *(a + 2 for a in (*chain.reduced, *chain.kept))]
    count = len(chain.reduced)
    if order != sorted(order):
        sums = graph.call(aten.permute.default, (sums, order), before=here)
    sums = graph.call(aten.flatten.using_ints, (sums, 1, 1 + count), before=here)
    if made.transposed:  # (in, out, taps…) to (in * taps, out, …)
        order = [0, *(a + 2 for a in chain.reduced), 1, *(a + 2 for a in chain.kept)]
    if order != sorted(order):
        weight = graph.call(aten.permute.default, (weight, order), before=here)
    first = 0 if made.transposed else 1
    weight = graph.call(aten.flatten.using_ints, (weight, first, first + count), before=here)
    left = [made.axes[a] for a in chain.kept]
    stride, padding = [a.stride for a in left], [a.padding for a in left]
    dilation = [a.dilation for a in left]
    if not made.transposed:
        op = conv.PLAIN[len(left) - 1].default
        rest: tuple[Any, ...] = (stride, padding, dilation, made.groups)
    else:
        op = aten.conv_transpose1d.default if len(left) == 1 else aten.conv_transpose2d.input
        rest = (stride, padding, [a.output_padding for a in left], made.groups, dilation)
    return graph.call(op, (sums, weight, bias, *rest), before=here)


def _restore_shape(graph: Graph, chain: ConvolutionChain, value: Node) -> Node:
    """Reduce batch or channels as well, and keep dimensions of size 1 where the program did."""
    here = chain.reduction
    if chain.others:
        op = aten.mean.dim if chain.mean else aten.sum.dim_IntList
        value = graph.call(op, (value, list(chain.others), chain.keepdim), before=here)
    if not chain.keepdim:
        return value
    for axis in chain.reduced:
        value = graph.call(aten.unsqueeze.default, (value, axis + 2), before=here)
    return value
