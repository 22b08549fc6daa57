"""A convolution whose windows lie side by side, as a product over all that is in a window."""

from __future__ import annotations

import math

from kernel_lsp.rewrite.codegen.convolution import cost as conv_cost
from kernel_lsp.rewrite.codegen.convolution.facts import Conv, conv_of
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

PRODUCT_FLOPS = 150e12
"""cuDNN in TF32 on a 1 x 1 filter in channels_last: assumed, half of what its products reach."""
MIN_GAIN = 0.1
"""Share of the convolution's time below which the estimate is not trusted."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        facts = conv_of(node) if is_op(node, aten.conv2d) and graph.device == "cuda" else None
        if facts is None or facts.taps == 1:
            continue
        window = " x ".join(map(str, facts.kernel))
        found.append(
            Match(
                nodes=(node,),
                label=graph.label(node),
                summary=f"compute {window} patches as one product over their pixels",
                benefit=_benefit(graph, facts),
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    facts = conv_of(match.nodes[0])
    assert facts is not None
    beside = facts.kernel == facts.stride and set(facts.dilation) == {1} and not any(facts.before)
    covered = all(o * k == n for o, k, n in zip(facts.out, facts.kernel, facts.size, strict=True))
    x = graph.val(facts.x)
    return [
        proof(
            "windows lie side by side",
            beside,
            f"kernel {facts.kernel}, stride {facts.stride}, {facts.before} before",
        ),
        proof("windows cover the image", covered, f"{facts.out} windows in {facts.size}"),
        proof(
            "every output channel reads all input channels",
            facts.groups == 1,
            f"groups {facts.groups}",
        ),
        proof("the image is NCHW", x.is_contiguous(), "strides of the workload"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    (node,) = match.nodes
    facts = conv_of(node)
    assert facts is not None
    (rows, columns), (height, width) = facts.out, facts.kernel
    channels = facts.in_channels

    split = graph.call(
        aten.reshape.default, (facts.x, [-1, channels, rows, height, columns, width]), before=node
    )
    pixels = graph.call(
        aten.permute.default, (split, [0, 2, 4, 1, 3, 5]), before=node, name="pixels"
    )
    flat = graph.call(
        aten.reshape.default,
        (pixels, [-1, rows, columns, facts.depth]),
        before=node,
        name="patches",
    )
    graph.note(
        flat,
        "Windows lie side by side, so a window's pixels can be the channels of a 1 x 1 "
        "convolution.",
    )
    image = graph.call(aten.permute.default, (flat, [0, 3, 1, 2]), before=node)
    filters = graph.call(
        aten.reshape.default, (facts.weight, [facts.out_channels, facts.depth, 1, 1]), before=node
    )
    made = graph.call(
        aten.conv2d.default, (image, filters, facts.bias), before=node, name="projected"
    )
    if not _becomes_tokens(graph, node):
        made = graph.call(aten.contiguous.default, (made,), before=node)
    graph.caveat("products are summed in another order, by another library kernel")
    graph.replace(node, made)


def _becomes_tokens(graph: Graph, node: Node) -> bool:
    """flatten(2).transpose(1, 2): in channels_last that is how the result lies already."""
    rows = graph.only_user(node)
    if rows is None or not is_op(rows, aten.flatten) or argument(rows, "start_dim") != 2:
        return False
    tokens = graph.only_user(rows)
    if is_op(tokens, aten.transpose):
        return {int(dim) % 3 for dim in tokens.args[1:3]} == {1, 2}
    return is_op(tokens, aten.permute) and list(tokens.args[1]) == [0, 2, 1]


def _benefit(graph: Graph, facts: Conv) -> float:
    rates = cost.gpu_rates(graph)
    x, out = (cost.moved_bytes_of(graph, node) for node in (facts.x, facts.node))
    eager = conv_cost.eager_conv_seconds(facts)
    copies = 2 * x + (0 if _becomes_tokens(graph, facts.node) else 2 * out)
    bias = 2 * out if facts.bias is not None else 0
    ours = (copies + x + out + bias) / rates.bytes_per_s + 2 * rates.overhead_s
    ours += conv_cost.flops(facts) / PRODUCT_FLOPS
    if ours > eager * (1.0 - MIN_GAIN) or math.prod(facts.out) == 1:
        # One window: a plain product already.
        return 0.0
    others = sum(cost.seconds(graph, node) for node in graph.nodes if node is not facts.node)
    return (eager - ours) / (eager + others)
