"""A loop over nn.LSTMCell, GRUCell or RNNCell becomes one call of the library's layer with its
weights."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.rewrite.codegen.recurrence import cell_layers
from kernel_lsp.rewrite.codegen.recurrence.cells import CellLoop, cell_loops, is_cell
from kernel_lsp.rewrite.skill import EXACT_DTYPES, Graph, Match, Node, Proof, cost, proof

SAVED = 0.6
"""Share of the loop's time. Two cores of an EPYC, 64 steps of 4 rows and 128 states: LSTM 12 ms to
1.1, RNN 1.6 to 0.8; of 64 rows, where the products take most of it, LSTM 106 to 52, GRU and RNN a
tenth less."""
EXACT_ON_GPU = (torch.float64, torch.bfloat16, torch.float16)
"""cuDNN multiplies float32 in TF32 unless a flag forbids it, the products of cells do not: 1e-3
beside 5e-7."""
handles_loops = True
parameters: dict[str, list[Any]] = {}


def match(graph: Graph) -> list[Match]:
    if not any(map(is_cell, graph.nodes)):
        return []
    own = {node.name: node for node in graph.nodes}
    return [_match(graph, found, own) for found in cell_loops(graph.copy())]


def _match(graph: Graph, found: CellLoop, own: dict[str, Node]) -> Match:
    loop = found.loop
    kinds = " and ".join(dict.fromkeys(cell.layer.split("_")[0].upper() for cell in found.cells))
    return Match(
        nodes=tuple(own[node.name] for node in loop.nodes if node.name in own),
        label=found.label(graph),
        summary=f"run the {loop.length} steps of the {kinds} cell as one layer of the library",
        benefit=cost.share(graph, SAVED * sum(cost.seconds(graph, node) for node in loop.nodes)),
        data={"found": found},
    )


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    found: CellLoop = match.data["found"]
    dtypes = {graph.val(cell.weights[0]).dtype for cell in found.cells}
    allowed = set(EXACT_ON_GPU if graph.device == "cuda" else EXACT_DTYPES)
    beside = ", ".join(node.name for node in found.spread) or "nothing"
    return [
        proof("all steps are the same", True, f"{found.loop.length} steps, compared one by one"),
        proof("a cell reads only its own state", True, "the graph's edges, in every step"),
        proof("nothing else depends on a state", True, f"beside the cells stand: {beside}"),
        proof(
            "no digits are lost", dtypes <= allowed, f"{sorted(map(str, dtypes))} on {graph.device}"
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    cell_layers.apply(graph, match.label)
    graph.caveat("the library's layer has a gradient, but no gradient of its gradient")
