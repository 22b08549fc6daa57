"""Run 2-D convolutions in channels_last, where cuDNN and oneDNN need no transposes."""

from __future__ import annotations

import torch

from kernel_lsp.rewrite import layout
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

MIN_CHANNELS = 16  # below, the direct kernels for contiguous inputs win
CONVERSION_S = (
    2.5e-6  # of a weight, on each call: a densely connected block lost 40 % to them on an H200
)
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    convolutions = [n for n in graph.nodes if is_op(n, *layout.CONVOLUTIONS)]
    if not convolutions or any(
        _is_channels_last(item) for n in convolutions for item in n.args[:2]
    ):
        return []
    # Of few input channels cuDNN may compute the sum exactly as they lie, and in TF32 in
    # channels_last.
    convolutions = [n for n in convolutions if graph.fact(n.args[0]).shape[1] >= MIN_CHANNELS]
    if not convolutions:
        return []
    gain = 0.2 * sum(layout.seconds(graph, n) for n in convolutions)
    copies = 2 * sum(cost.moved_bytes_of(graph, n.args[1]) for n in convolutions)
    copies += 2 * cost.moved_bytes_of(graph, convolutions[0].args[0])
    launches = CONVERSION_S * len(convolutions) if graph.device == "cuda" else 0.0
    return [
        Match(
            nodes=tuple(convolutions),
            label=graph.label(convolutions[0]),
            summary="run the convolutions in channels_last",
            benefit=cost.share(graph, gain - copies / cost.rates(graph).bytes_per_s - launches),
        )
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    channels = [graph.fact(n).shape[1] for n in match.nodes]
    sensitive = [
        n.name
        for n in graph.nodes
        if is_op(n, aten.view, aten.as_strided) and _reads(n, match.nodes)
    ]
    groups = [argument(n, "groups", 1) for n in match.nodes]
    return [
        proof(
            "channels fill a vector", min(channels) >= MIN_CHANNELS, f"output channels {channels}"
        ),
        proof("no depthwise convolution", all(g == 1 for g in groups), f"groups {groups}"),
        proof(
            "nothing below needs contiguous strides",
            not sensitive,
            ", ".join(sensitive) or "no view of the result",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    last = {"memory_format": torch.channels_last}
    for node in match.nodes:
        moved = [
            graph.call(aten.contiguous.default, (item,), last, before=node)
            for item in node.args[:2]
        ]
        made = graph.call(node.target, (*moved, *node.args[2:]), node.kwargs, before=node)
        graph.note(moved[0], "Convolutions run fastest when the channels of a pixel are neighbors.")
        graph.replace(node, made)
    leaves = []
    for leaf in graph.outputs:
        if isinstance(leaf, Node) and _is_channels_last(leaf):
            leaf = graph.call(aten.contiguous.default, (leaf,), before=graph.output)
            graph.note(leaf, "The result's strides stay what they were.")
        leaves.append(leaf)
    graph.output.args = (type(graph.output.args[0])(leaves),)


def _is_channels_last(node: Node) -> bool:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return False
    return bool(
        value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
    )


def _reads(node: Node, sources: tuple[Node, ...]) -> bool:
    """A path leads from one of the sources to the node."""
    todo, seen = list(node.all_input_nodes), set()
    while todo:
        item = todo.pop()
        if item in sources:
            return True
        if item not in seen:
            seen.add(item)
            todo += item.all_input_nodes
    return False
