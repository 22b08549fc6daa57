"""Average pooling right after a stride-1 convolution is one convolution with a larger kernel and stride."""

from __future__ import annotations

import math

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
    for pool in graph.nodes:
        conv = pool.args[0] if is_op(pool, aten.avg_pool2d) else None
        if conv is None or not is_op(conv, aten.conv2d) or isinstance(argument(conv, "padding"), str):
            continue
        rates = cost.RATES[graph.device]
        gone = cost.seconds(graph, conv) + cost.seconds(graph, pool)
        made = _flops(graph, conv, pool) / rates.flops_per_s + 4 * rates.overhead_s
        found.append(
            Match(
                nodes=(conv, pool),
                label=graph.label(conv, pool),
                summary="merge average pooling into the convolution before it",
                benefit=cost.share(graph, gone - made),
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    conv, pool = match.nodes
    steps = [*_pair(argument(conv, "stride")), *_pair(argument(conv, "dilation"))]
    plain = not argument(pool, "ceil_mode") and argument(pool, "divisor_override") is None
    before = cost.flops(conv)
    after = _flops(graph, conv, pool)
    dtype = graph.fact(conv).dtype
    return [
        proof(
            "the convolution has stride 1 and dilation 1", set(steps) == {1}, f"stride and dilation {steps}"
        ),
        proof(
            "every window lies inside",
            plain and set(_pair(argument(pool, "padding"))) == {0},
            "no padding, no ceil_mode",
        ),
        proof(
            "nobody else reads the convolution", graph.only_user(conv) is pool, f"{conv.name} has one reader"
        ),
        proof("the larger kernel costs less", after < before, f"{after:.3g} operations against {before:.3g}"),
        proof("the averaged weight keeps its precision", dtype in EXACT_DTYPES, f"dtype is {dtype}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    conv, pool = match.nodes
    window, stride = _window(pool)
    weight = argument(conv, "weight")
    border = [window[1] - 1, window[1] - 1, window[0] - 1, window[0] - 1]
    padded = graph.call(aten.pad.default, (weight, border), before=pool)
    spread = graph.call(aten.avg_pool2d.default, (padded, list(window), [1, 1]), before=pool, name="weight")
    graph.note(spread, "Averaging the outputs of a stride-1 convolution averages its shifted kernels.")
    rest = (list(stride), argument(conv, "padding"), [1, 1], argument(conv, "groups"))
    made = graph.call(aten.conv2d.default, (conv.args[0], spread, argument(conv, "bias"), *rest), before=pool)
    graph.caveat("products are summed in another order")
    graph.replace(pool, made)


def _pair(value: object) -> tuple[int, int]:
    sizes = [value, value] if isinstance(value, int) else list(value)
    return (sizes[0], sizes[-1])


def _window(pool: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    window = _pair(argument(pool, "kernel_size"))
    stride = argument(pool, "stride")
    return window, _pair(stride) if stride else window


def _flops(graph: Graph, conv: Node, pool: Node) -> float:
    """Operations of the merged convolution."""
    window, _ = _window(pool)
    _, channels, *kernel = graph.fact(argument(conv, "weight")).shape
    taps = math.prod(k + w - 1 for k, w in zip(kernel, window, strict=True))
    return 2.0 * graph.fact(pool).numel * channels * taps
