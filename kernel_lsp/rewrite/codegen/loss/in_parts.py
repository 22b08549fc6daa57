"""Losses that torch computes from other operations: written out, so that their parts share one
pass.

`match` writes the loss out in a copy of the graph and takes the match that has all that belongs to
a row, with its saving; `apply` does the same in the graph itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph

WriteOut: TypeAlias = Callable[[Graph, fx.Node], tuple[fx.Node, fx.Node]]
"""Replaces the loss by its parts: the first reduction over the rows, and each row's loss."""


def match(
    graph: Graph, node: fx.Node, write_out: WriteOut, kind: str, summary: str
) -> Match | None:
    """The loss whose parts share a kernel, as a match; None where they do not. ``kind``: a key of
    the match's data."""
    copy = graph.copy()
    fused = _match_parts(copy, copy.named(node.name), write_out)
    if fused is None:
        return None
    return replace(
        fused,
        nodes=(node,),
        label=graph.label(node),
        summary=summary,
        data={"nodes": [node.name], "parameters": fused.data["parameters"], kind: True},
    )


def apply(graph: Graph, match: Match, choice: dict[str, Any], write_out: WriteOut) -> None:
    """Writes the loss out and puts one kernel in the place of its parts. Raises RewriteError where
    they do not share one."""
    fused = _match_parts(graph, graph.named(match.data["nodes"][0]), write_out)
    if fused is None:
        raise RewriteError(f"the parts of {match.label} do not share a kernel")
    fuse.apply(graph, fused, choice)


def _match_parts(graph: Graph, loss: fx.Node, write_out: WriteOut) -> Match | None:
    first, rows = write_out(graph, loss)
    found = fuse.reduction_matches(graph, ("sum", "pairwise_distance"), alone=False)
    return next((match for match in found if first in match.nodes and rows in match.nodes), None)
