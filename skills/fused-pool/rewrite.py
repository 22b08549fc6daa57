"""Max and average pools with their pointwise neighbors in one pass, without indices."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.pooling import fuse as pooling
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    return pooling.matches(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return pooling.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    pooling.apply(graph, match, parameters)
