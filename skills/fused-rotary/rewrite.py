"""Rotary position embeddings in one pass, forwards and backwards."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.pointwise import rotary
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    return rotary.matches(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return rotary.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    rotary.apply(graph, match, parameters)
