"""A whole network of 2-D convolutions in channels-last memory, with batch norm ready to be
fused."""

from __future__ import annotations

from kernel_lsp.rewrite import layout
from kernel_lsp.rewrite.skill import Graph, Match, Node, Proof, argument, cost, proof

MIN_CHANNELS = 16
SPARED = 0.25
"""Share of a convolution's time that its transposes take in NCHW, with that many channels on both
sides: assumed. With fewer, nothing."""
SMALL_KERNEL_S = 2.5e-6
MIN_GAIN = 0.05
"""Share of the target's time below which the estimate is not trusted."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = layout.convolutions(graph)
    if graph.device != "cuda" or graph.gradients or not found:
        return []
    gain = sum(
        SPARED * layout.seconds(graph, node)
        for node in found
        if _channels(graph, node) >= MIN_CHANNELS
    )
    moved = sum(2 * cost.moved_bytes_of(graph, node) for node in layout.copied_values(graph))
    spent = moved / cost.rates(graph).bytes_per_s + sum(_weight_seconds(node) for node in found)
    share = (gain - spent) / max(_total(graph), 1e-9)
    return [
        Match(
            nodes=tuple(found),
            label=graph.label(found[0], found[-1]) if len(found) > 1 else graph.label(found[0]),
            summary=f"run {len(found)} convolutions and what follows them in channels-last memory",
            benefit=share if share >= MIN_GAIN else 0.0,
        )
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    found = layout.convolutions(graph)
    grouped = [node.name for node in found if argument(node, "groups", 1) != 1]
    odd = [
        leaf.name
        for leaf in graph.outputs
        if isinstance(leaf, Node)
        and graph.val(leaf).dim() == 4
        and not graph.val(leaf).is_contiguous()
    ]
    images = [node.args[0] for node in found]
    other = [node.name for node in images if not graph.val(node).is_contiguous()]
    return [
        proof("no grouped convolution", not grouped, ", ".join(grouped) or "groups 1 everywhere"),
        proof("images are NCHW now", not other, ", ".join(other) or "strides of the workload"),
        proof(
            "results keep their strides",
            not odd,
            ", ".join(odd) or "results are copied back to NCHW",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    layout.to_channels_last(graph)


def _channels(graph: Graph, node: Node) -> int:
    return int(min(graph.fact(node.args[0]).shape[1], graph.fact(node).shape[1]))


def _weight_seconds(node: Node) -> float:
    """A kernel of one pixel lies the same way in both formats."""
    weight = node.args[1].meta["val"]
    return 0.0 if weight.shape[2:].numel() == 1 else SMALL_KERNEL_S


def _total(graph: Graph) -> float:
    convolutions = set(layout.convolutions(graph))
    others = sum(cost.seconds(graph, node) for node in graph.nodes if node not in convolutions)
    return others + sum(
        layout.seconds(graph, node) + cost.rates(graph).overhead_s for node in convolutions
    )
