"""A target of many small kernels is recorded as a CUDA graph and replayed with one launch."""

from __future__ import annotations

from kernel_lsp.rewrite import call_time, graph_replay
from kernel_lsp.rewrite.skill import Graph, Match, Proof

NOTE = (
    "Many small kernels: launching them takes longer than running them, so they are replayed "
    "from a CUDA"
    " graph."
)
handles_loops = True
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    if not graph_replay.fits(graph) or not graph.nodes:
        return []
    return [
        Match(
            nodes=tuple(graph.nodes),
            label=graph.label(*[item.node for item in graph.inputs if item.node is not None][:1]),
            summary=f"replay {call_time.launches(graph)} launches as one CUDA graph",
            benefit=graph_replay.benefit(graph),
            wraps=True,
        )
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return graph_replay.proofs(graph)


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    graph_replay.wrap(graph, "_replayed", NOTE)
