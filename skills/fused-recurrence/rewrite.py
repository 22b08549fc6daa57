"""Recurrences that act element by element, written as a Python loop, in one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.core.launching import unique_name
from kernel_lsp.rewrite.codegen.recurrence import fuse as recurrence
from kernel_lsp.rewrite.codegen.recurrence.split_steps import split, split_of
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, loops_of
from kernel_lsp.rewrite.loops.walks import SliceWalk
from kernel_lsp.rewrite.near_misses import loops as unfit
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof, cost, proof

LATENCY_S = 0.15e-6  # of one step, with its loads in flight: assumed until measured
LAUNCH_S = 12e-6
handles_loops = True
parameters: dict[str, list[Any]] = recurrence.PARAMETERS


def match(graph: Graph) -> list[Match]:
    matches = []
    for loop in loops_of(graph):
        if (found := _find_recurrence(graph, loop)) is not None:
            matches.append(_match(graph, found, loop, split=False))
        elif (
            _may_split(graph, loop)
            and (found := _split_off(graph.copy(), loop.label(graph))) is not None
        ):
            matches.append(_match(graph, found, loop, split=True))
    return matches


def misses(graph: Graph) -> Iterable[Miss]:
    return unfit.misses(graph, lambda loop: _find_recurrence(graph, loop) is not None)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    loop = match.data["found"].loop
    length = f"{loop.length} steps of {len(loop.steps[1])} operations"
    around = "the graph's edges: it is done for all steps, in front of them or behind"
    apart = [proof("what stands around the state does not change it", True, around)]
    return [
        *(apart if match.data["split"] else []),
        proof(
            "all steps are the same", True, f"{length}, compared one by one with their constants"
        ),
        proof("a step reads only the one before it", True, "the graph's edges"),
        proof(
            "each element goes its own way",
            True,
            "shapes and schemas: all operations are pointwise",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    found = _split_off(graph, match.label) if match.data["split"] else match.data["found"]
    if found is None:
        graph.named(match.label)  # raises: it was there when the match was made
        return
    recurrence.apply(graph, found, parameters)
    graph.caveat("the state stays in float32 between steps; eager rounds it to the tensor's dtype")


def _find_recurrence(graph: Graph, loop: UnrolledLoop) -> recurrence.Recurrence | None:
    return recurrence.recurrence_of(graph, loop, unique_name(graph, "recurrence"))


def _may_split(graph: Graph, loop: UnrolledLoop) -> bool:
    """Asked first: a copy of the graph takes longer."""
    parts = split_of(graph, loop)
    return parts is not None and recurrence.acts_elementwise(
        loop.steps[1][index] for index in parts.core
    )


def _split_off(graph: Graph, label: str) -> recurrence.Recurrence | None:
    """In place: what is left of the loop of this label without what depends on no state."""
    loop = next((loop for loop in loops_of(graph) if loop.label(graph) == label), None)
    parts = split_of(graph, loop) if loop is not None else None
    left = split(graph, parts) if parts is not None else None
    return _find_recurrence(graph, left) if left is not None else None


def _match(
    graph: Graph, found: recurrence.Recurrence, whole: UnrolledLoop, *, split: bool
) -> Match:
    loop = found.loop
    eager = sum(cost.seconds(graph, node) for node in whole.nodes)
    moved = sum(_bytes(graph, walk) for walk in found.walks.values())
    moved += len(loop.listed) * cost.moved_bytes_of(graph, loop.steps[1][-1]) * loop.length
    ours = max(moved / cost.gpu_rates(graph).bytes_per_s, loop.length * LATENCY_S) + LAUNCH_S
    return Match(
        nodes=whole.nodes,
        label=whole.label(graph),
        summary=f"run the {loop.length} steps of the loop in one kernel",
        benefit=cost.share(graph, eager - ours),
        plain=False,
        data={"found": found, "split": split},
    )


def _bytes(graph: Graph, walk: SliceWalk) -> int:
    """What is moved for a tensor that is walked through; a copy reads it and writes it once
    more."""
    return cost.moved_bytes_of(graph, walk.base) * (
        1 if graph.val(walk.base).is_contiguous() else 3
    )
