"""Max and average pools with their pointwise neighbors in one pass, without indices."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.pooling import fuse as pooling
from kernel_lsp.rewrite.skill import Graph, GraphMatch, Proof


def match(graph: Graph) -> list[GraphMatch]:
    return pooling.matches(graph)


def preconditions(graph: Graph, match: GraphMatch) -> list[Proof]:
    return pooling.proofs(graph, match)


def parameters(graph: Graph, match: GraphMatch) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: GraphMatch, parameters: dict[str, Any]) -> None:
    pooling.apply(graph, match, parameters)
