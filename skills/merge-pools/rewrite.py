"""Two pools of one kind in a row are one larger pool, where its windows are the same."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.algebra import pools
from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Proof,
    cost,
    lost_gradients,
    proof,
    without_gradients,
)

TIES = "among equal values another one may get the gradient"
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        for read in (pools.maximum, pools.average):
            outer = read(node)
            inner = read(outer.input) if outer is not None else None
            average = read is pools.average
            if outer is None or inner is None or len(inner.axes) != len(outer.axes):
                continue
            gone = cost.seconds(graph, inner.node) + cost.seconds(graph, node)
            moved = cost.moved_bytes_of(graph, inner.input) + cost.moved_bytes_of(graph, node)
            rates = cost.rates(graph)
            found.append(
                Match(
                    nodes=(inner.node, node),
                    label=graph.label(inner.node, node),
                    summary="merge two pools into one",
                    benefit=cost.share(graph, gone - moved / rates.bytes_per_s - rates.overhead_s),
                    data={"merged": _merge_pools(inner, outer, average), "average": average},
                )
            )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    inner, _ = match.nodes
    merged = match.data["merged"]
    axes = merged[0] if merged is not None else None
    words = "; ".join(
        f"{a.kernel} wide, every {a.stride}, padded by {a.padding}" for a in axes or ()
    )
    what = (
        "weighs the same positions alike" if match.data["average"] else "holds the same positions"
    )
    return [
        proof(
            f"every window of the merged pool {what}", axes is not None, words or "windows differ"
        ),
        proof(
            "nobody else reads the first pool",
            graph.only_user(inner) is match.nodes[1],
            f"{inner.name} has one reader",
        ),
        *([] if match.data["average"] else lost_gradients(graph, TIES)),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    inner, outer = match.nodes
    (axes, counts), average = match.data["merged"], match.data["average"]
    op = (pools.AVERAGE if average else pools.MAXIMUM)[len(axes) - 1].default
    settings = ([a.kernel for a in axes], [a.stride for a in axes], [a.padding for a in axes])
    rest = () if not average or counts else (False, False)  # ceil_mode, count_include_pad
    made = graph.call(op, (inner.args[0], *settings, *rest), before=outer)
    graph.note(
        made, f"Two {'averages' if average else 'maxima'} in a row are one over the larger window."
    )
    if average:
        graph.caveat("an average is rounded once instead of twice")
    else:
        without_gradients(graph, TIES)
    graph.replace(outer, made)


def _merge_pools(
    inner: pools.PoolNode, outer: pools.PoolNode, average: bool
) -> tuple[list[pools.PoolDim], bool] | None:
    """(axes of the merged pool, whether it counts its padding)."""
    for merged in (True, False):
        counts = (inner.counts_padding, outer.counts_padding, merged) if average else None
        pairs = zip(inner.axes, outer.axes, strict=True)
        made = [pools.merged_axis(first, second, counts) for first, second in pairs]
        if all(made):
            return [axis for axis in made if axis is not None], merged
    return None
