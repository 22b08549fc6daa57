"""Attention written by hand, tile by tile: the scores and weights never reach memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.attention import fuse as attention_fuse
from kernel_lsp.rewrite.near_misses import attention
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof


def match(graph: Graph) -> list[Match]:
    return attention_fuse.matches(graph)


def misses(graph: Graph) -> Iterable[Miss]:
    return attention.misses(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return attention_fuse.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    attention_fuse.apply(graph, match, parameters)
