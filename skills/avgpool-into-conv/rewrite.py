"""Average pooling right after a convolution is one convolution with a larger kernel and stride."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.algebra import convolution as conv
from kernel_lsp.rewrite.algebra import pools
from kernel_lsp.rewrite.skill import EXACT_DTYPES, Graph, Match, Node, Proof, aten, cost, proof

parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class MergedAxis:
    """The convolution along one axis: output j meets input ``j * stride - padding + tap``."""

    kernel: int
    stride: int
    padding: int
    missing: int
    """Positions that the last output reads past the input and its padding."""
    extra: int
    """Outputs behind the last one, from padding both sides alike."""
    window: int
    """Width over which the weight is averaged."""
    step: int
    """Every which of the averaged weights is a tap."""
    border: tuple[int, int]
    """Zeros around the weight before it is averaged; negative: taps cut off."""


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        pool = pools.average(node)
        made = conv.read(pool.input) if pool is not None else None
        if pool is None or made is None:
            continue
        axes = [
            _merge_axis(*pair, made.transposed) for pair in zip(made.axes, pool.axes, strict=True)
        ]
        saved = 0.0
        if all(axes):
            rates = cost.rates(graph)
            gone = conv.library_seconds(graph, made) + cost.seconds(graph, node)
            work = _flops(graph, made, node, axes) / conv.rate(graph, made, False)
            moved = (
                cost.moved_bytes_of(graph, made.input) + cost.moved_bytes_of(graph, node)
            ) / rates.bytes_per_s
            saved = gone - max(work, moved) - 4 * rates.overhead_s
        found.append(
            Match(
                nodes=(made.node, node),
                label=graph.label(made.node, node),
                summary="merge average pooling into the convolution before it",
                benefit=cost.share(graph, saved),
                data={"axes": axes, "convolution": made, "pool": pool},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    made, pool, axes = (match.data[key] for key in ("convolution", "pool", "axes"))
    dtype = graph.fact(made.node).dtype
    steps = [(a.stride, a.dilation) for a in made.axes]
    fits = "stride 1" if not made.transposed else "a stride that divides the pool's"
    inside = all(a.padding == 0 and (a.out - 1) * a.stride + a.kernel <= a.size for a in pool.axes)
    proofs = [
        proof(
            f"the convolution has dilation 1 and {fits}",
            all(axes),
            f"(stride, dilation) by axis {steps}",
        ),
        proof("every window lies inside", inside, "no padding, and the last window ends in time"),
        proof(
            "nobody else reads the convolution",
            graph.only_user(made.node) is match.nodes[1],
            f"{made.node.name} has one reader",
        ),
        proof(
            "the averaged weight keeps its precision", dtype in EXACT_DTYPES, f"dtype is {dtype}"
        ),
    ]
    if all(axes):
        before, after = cost.flops(made.node), _flops(graph, made, match.nodes[1], axes)
        proofs.append(
            proof(
                "the merged kernel costs less",
                after < before,
                f"{after:.3g} operations against {before:.3g}",
            )
        )
    return proofs


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    made: conv.Convolution = match.data["convolution"]
    axes: list[MergedAxis] = match.data["axes"]
    here = match.nodes[1]
    weight = _average_weight(graph, made, axes, here)
    value, padding = _pad_input(graph, made.input, axes, here)
    rest = ([a.stride for a in axes], padding, [1] * len(axes), made.groups)
    op = conv.PLAIN[len(axes) - 1].default
    result = graph.call(op, (value, weight, made.bias, *rest), before=here)
    for index, axis in enumerate(axes):
        if axis.extra:
            end = graph.fact(here).shape[index + 2]
            result = graph.call(aten.slice.Tensor, (result, index + 2, 0, end), before=here)
    graph.caveat("products are summed in another order")
    graph.replace(here, result)


def _merge_axis(
    axis: conv.ConvolutionDim, pool: pools.PoolDim, transposed: bool
) -> MergedAxis | None:
    """None when strides and dilations do not fit.

    A transposed convolution meets output o with ``i * stride - padding + k = o``, and output j of
    the pool averages o = j * step + r for 0 <= r < window: i = j * step / stride + (r + padding -
    k) / stride, whole numbers only."""
    if axis.dilation != 1 and axis.kernel != 1:
        return None
    window, step, taps = pool.kernel, pool.stride, axis.kernel
    if not transposed:
        if axis.stride != 1:
            return None
        kernel, padding, stride = taps + window - 1, axis.padding, step
        border, every = (window - 1, window - 1), 1
    else:
        first, last = (
            -((taps - 1 - axis.padding) // axis.stride),
            (window - 1 + axis.padding) // axis.stride,
        )
        if step % axis.stride or first > 0:
            return None
        kernel, padding, stride, every = last - first + 1, -first, step // axis.stride, axis.stride
        start = taps - 1 - axis.padding + every * first
        border = (window - 1 - start, window - 1)
    reach = stride * (pool.out - 1) + kernel
    missing = max(0, reach - axis.size - 2 * padding)
    extra = (axis.size + 2 * padding - kernel) // stride + 1 - pool.out if not missing else 0
    return MergedAxis(
        kernel=kernel,
        stride=stride,
        padding=padding,
        missing=missing,
        extra=extra,
        window=window,
        step=every,
        border=border,
    )


def _average_weight(
    graph: Graph, made: conv.Convolution, axes: list[MergedAxis], here: Node
) -> Node:
    """The merged weight (out, in / groups, *kernel)."""
    weight = made.weight
    if made.transposed:
        weight = conv.as_plain_weight(graph, made, here)
    border = [size for axis in reversed(axes) for size in axis.border]
    if any(border):
        weight = graph.call(aten.pad.default, (weight, border), before=here)
    window, step = [axis.window for axis in axes], [axis.step for axis in axes]
    weight = graph.call(
        pools.AVERAGE[len(axes) - 1].default, (weight, window, step), before=here, name="weight"
    )
    if made.transposed:
        graph.note(
            weight, "The average of a transposed convolution is a plain convolution with a stride:"
        )
        graph.note(
            weight, "its taps are averages of those that reach the same input from one window."
        )
    else:
        graph.note(
            weight, "Averaging the outputs of a stride-1 convolution averages its shifted kernels."
        )
    return weight


def _pad_input(
    graph: Graph, value: Node, axes: list[MergedAxis], here: Node
) -> tuple[Node, list[int]]:
    """(input, padding): the input is padded by itself only where one side needs more than the
    other."""
    if not any(axis.missing for axis in axes):
        return value, [axis.padding for axis in axes]
    border = [
        size for axis in reversed(axes) for size in (axis.padding, axis.padding + axis.missing)
    ]
    padded = graph.call(aten.pad.default, (value, border), before=here, name="padded")
    return padded, [0] * len(axes)


def _flops(graph: Graph, made: conv.Convolution, pool: Node, axes: list[Any]) -> float:
    """Operations of the merged convolution."""
    taps = math.prod(axis.kernel for axis in axes)
    return float(2 * graph.fact(pool).numel * made.in_channels // made.groups * taps)
