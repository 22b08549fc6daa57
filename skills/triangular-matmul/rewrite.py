"""Products of triangular matrices, and triangles of products: blocks of zeros are skipped."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.matmul import fuse as matmul
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    return matmul.matches(graph, triangular=True)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return matmul.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def estimate(graph: Graph, match: Match, choice: dict[str, Any]) -> float:
    return matmul.estimate(match, choice)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    matmul.apply(graph, match, parameters)
