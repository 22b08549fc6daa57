"""Matrix products on tensor cores as accurate as float32, with the pointwise operations after
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.matmul import fuse as matmul
from kernel_lsp.rewrite.near_misses import products
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof


def match(graph: Graph) -> list[Match]:
    return matmul.matches(graph)


def misses(graph: Graph) -> Iterable[Miss]:
    return products.matmuls(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return matmul.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def estimate(graph: Graph, match: Match, choice: dict[str, Any]) -> float:
    return matmul.estimate(match, choice)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    matmul.apply(graph, match, parameters)
