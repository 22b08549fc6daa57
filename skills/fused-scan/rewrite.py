"""Cumulative sums and products with their flips, shifts, masks and pointwise neighbors in one
pass."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.scan import fuse as scan
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    return scan.matches(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return scan.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    scan.apply(graph, match, parameters)
