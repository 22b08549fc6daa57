"""Layer, RMS, group and instance norm with their pointwise neighbors, in one pass where a row
fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.core import fuse
from kernel_lsp.rewrite.codegen.core.space import NORMS
from kernel_lsp.rewrite.near_misses import fusing
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof


def match(graph: Graph) -> list[Match]:
    return fuse.norm_matches(graph)


def misses(graph: Graph) -> Iterable[Miss]:
    return fusing.reductions(graph, NORMS)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return fuse.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return fuse.parameters(graph, match)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    fuse.apply(graph, match, parameters)
