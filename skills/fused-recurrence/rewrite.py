"""Recurrences that act element by element, written as a Python loop, in one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen import recurrence
from kernel_lsp.rewrite.codegen.launching import unique_name
from kernel_lsp.rewrite.loops import Loop, loops_of
from kernel_lsp.rewrite.misses import loops as unfit
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof, cost, proof
from kernel_lsp.rewrite.walks import Walk

LATENCY_S = 0.15e-6  # of one step, with its loads in flight: assumed until measured
LAUNCH_S = 12e-6
handles_loops = True
parameters: dict[str, list[Any]] = recurrence.PARAMETERS


def match(graph: Graph) -> list[Match]:
    return [
        made for loop in loops_of(graph) if (found := _found(graph, loop)) and (made := _match(graph, found))
    ]


def misses(graph: Graph) -> Iterable[Miss]:
    return unfit.misses(graph, lambda loop: _found(graph, loop) is not None)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    loop = match.data["found"].loop
    length = f"{loop.length} steps of {len(loop.steps[1])} operations"
    return [
        proof("all steps are the same", True, f"{length}, compared one by one with their constants"),
        proof("a step reads only the one before it", True, "the graph's edges"),
        proof("each element goes its own way", True, "shapes and schemas: all operations are pointwise"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    recurrence.apply(graph, match.data["found"], parameters)
    graph.caveat("the state stays in float32 between steps; eager rounds it to the tensor's dtype")


def _found(graph: Graph, loop: Loop) -> recurrence.Recurrence | None:
    return recurrence.recurrence_of(graph, loop, unique_name(graph, "recurrence"))


def _match(graph: Graph, found: recurrence.Recurrence) -> Match:
    loop = found.loop
    eager = sum(cost.seconds(graph, node) for node in loop.nodes)
    moved = sum(_bytes(graph, walk) for walk in found.walks.values())
    moved += len(loop.listed) * cost.moved_bytes_of(graph, loop.steps[1][-1]) * loop.length
    ours = max(moved / cost.RATES["cuda"].bytes_per_s, loop.length * LATENCY_S) + LAUNCH_S
    return Match(
        nodes=loop.nodes,
        label=graph.label(loop.steps[0][0], loop.steps[-1][-1]),
        summary=f"run the {loop.length} steps of the loop in one kernel",
        benefit=cost.share(graph, eager - ours),
        plain=False,
        data={"found": found},
    )


def _bytes(graph: Graph, walk: Walk) -> int:
    """What is moved for a tensor that is walked through; a copy reads it and writes it once more."""
    return cost.moved_bytes_of(graph, walk.base) * (1 if graph.val(walk.base).is_contiguous() else 3)
