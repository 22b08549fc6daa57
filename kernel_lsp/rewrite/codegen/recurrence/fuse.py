"""A loop over time whose steps act element by element, as one kernel that keeps the state in
registers.

`recurrence_of` tells which loops (facts.py), `apply` replaces one by a launch: kernel
(source.py) and launcher (launcher.py) agree about names and addresses
(addresses.py). A tensor that is not contiguous is copied once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.recurrence.addresses import TensorAddresses
from kernel_lsp.rewrite.codegen.recurrence.facts import Recurrence, acts_elementwise, recurrence_of
from kernel_lsp.rewrite.codegen.recurrence.launcher import Launcher
from kernel_lsp.rewrite.codegen.recurrence.source import RecurrenceKernel
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops.results import first_reader, launch

__all__ = ["PARAMETERS", "Recurrence", "acts_elementwise", "apply", "emit", "recurrence_of"]

PARAMETERS: dict[str, list[Any]] = {
    "BLOCK_SIZE": [128, 64, 256],
    "num_stages": [8, 4],
    "num_warps": [4],
}
"""Few elements a program: a state of 16384 elements must fill all multiprocessors."""


def emit(paths: TensorAddresses, choice: Mapping[str, Any]) -> GeneratedSource:
    """Kernel and launcher; the launcher returns the results in their order."""
    text, sizes = RecurrenceKernel(paths).write()
    region, steps = paths.region, paths.loop.length
    summary = f"{steps} steps of a recurrence in one kernel"
    return source.generate_source(region, [text], Launcher(paths).write(choice, sizes), summary)


def apply(graph: Graph, found: Recurrence, choice: Mapping[str, Any]) -> None:
    """Replace the loop by one launch. Raises RewriteError when a result is needed before its
    inputs exist."""
    paths, order = TensorAddresses(graph, found), {node: i for i, node in enumerate(graph.fx.nodes)}
    before = first_reader(graph, found.loop)
    if any(order[node] >= order[before] for node in found.inputs):
        raise RewriteError(
            "a state is read before the loop's inputs exist", "keep the loop as it is"
        )
    name = paths.results[0] if len(found.results) == 1 else "states"
    launch(graph, found.loop, emit(paths, choice), found.inputs, found.results, before, name)
