"""In a loop over time, what a layer does with the input is one product for all steps, before the
loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.rewrite.codegen.recurrence.cells import complete
from kernel_lsp.rewrite.codegen.recurrence.hoist_source import HoistedLoop
from kernel_lsp.rewrite.loops.hoist_places import places_of
from kernel_lsp.rewrite.loops.open_cells import can_open, open_cells, require_kind
from kernel_lsp.rewrite.loops.results import first_reader, launch, results_of
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, loops_of
from kernel_lsp.rewrite.skill import EXACT_DTYPES, Graph, Match, Node, Proof, cost, proof

SHORTEST_KERNEL_S = 2.5e-6
handles_loops = True
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = [
        made for loop in loops_of(graph) if (made := _match(graph, loop, loop.nodes)) is not None
    ]
    if any(can_open(graph, node) for node in graph.nodes):
        found += _matches_of_cells(graph)
    return found


def _match(graph: Graph, loop: UnrolledLoop, nodes: Sequence[Node]) -> Match | None:
    if not (places := places_of(graph, loop)) or not set(loop.final) <= {
        i for _, i in loop.carried
    }:
        return None
    each = cost.rates(graph).overhead_s + SHORTEST_KERNEL_S
    return Match(
        nodes=tuple(nodes),
        label=loop.label(graph),
        summary=f"one product for the inputs of all {loop.length} steps, before the loop",
        benefit=cost.share(graph, len(places) * loop.length * each),
        data={"loop": loop, "opened": None},
    )


def _matches_of_cells(graph: Graph) -> list[Match]:
    """Loops in which a product appears only once their cells are opened, in a copy of the graph."""
    own = {node.name: node for node in graph.nodes}
    found = []
    for label in _labels(twin := graph.copy()):
        loop, cells = _open_loop(twin, label)
        if loop is None or (made := _match(twin, loop, ())) is None:
            continue
        nodes = [own[name] for name in (*cells, *(node.name for node in loop.nodes)) if name in own]
        found.append(
            replace(made, nodes=tuple(nodes), label=label, data={"loop": loop, "opened": label})
        )
    return found


def _labels(graph: Graph) -> list[str]:
    """Loops with cells in them; the graph may get more nodes by it."""
    complete(graph)
    loops = [
        loop for loop in loops_of(graph) if any(can_open(graph, node) for node in loop.steps[1])
    ]
    return [loop.label(graph) for loop in loops]


def _open_loop(graph: Graph, label: str) -> tuple[UnrolledLoop | None, list[str]]:
    """The loop of this label with its cells opened, in place, and what these were called."""
    for loop in loops_of(graph):
        if loop.label(graph) == label:
            cells = [node for node in loop.nodes if can_open(graph, node)]
            for node in cells:
                require_kind(graph, node)
            made = open_cells(graph, loop)
            names = [node.name for node in cells]
            return next((one for one in loops_of(graph) if made[0] in one.nodes), None), names
    return None, []


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    loop: UnrolledLoop = match.data["loop"]
    dtypes = {graph.val(loop.steps[1][i]).dtype for i in places_of(graph, loop)}
    dims = sorted({walk.dim for walk in loop.walks})
    return [
        proof(
            "all steps are the same",
            True,
            f"{loop.length} steps, compared one by one with their weights",
        ),
        proof(
            "rows of a product do not mix",
            True,
            f"steps lie along dimension {dims}, features along another",
        ),
        proof("no digits are lost", dtypes <= set(EXACT_DTYPES), f"{sorted(map(str, dtypes))}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    loop: UnrolledLoop | None = match.data["loop"]
    if (label := match.data["opened"]) is not None:
        complete(graph)
        loop, _ = _open_loop(graph, label)
    if loop is None:
        graph.named(label)  # raises: it was there when the match was made
    writer = HoistedLoop(graph, loop)
    results = results_of(graph, loop)
    before = first_reader(graph, loop)
    kernel, inputs = writer.write(results, before)
    launch(graph, loop, kernel, inputs, results, before, "states")
