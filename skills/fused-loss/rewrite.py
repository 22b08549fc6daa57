"""Losses: the difference, its penalty and the mean in two deterministic launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.core import space
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.codegen.groups.fuse import proofs as preconditions
from kernel_lsp.rewrite.codegen.loss import (
    cosine_embedding,
    cross_entropy,
    cross_entropy_maps,
    triplet,
)
from kernel_lsp.rewrite.near_misses import fusing
from kernel_lsp.rewrite.skill import Graph, Match, Miss
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]


def match(graph: Graph) -> list[Match]:
    pairs = fuse.reduction_matches(graph, space.LOSSES)
    classes = [*cross_entropy.matches(graph), *cross_entropy_maps.matches(graph)]
    return [*pairs, *classes, *triplet.matches(graph), *cosine_embedding.matches(graph)]


def misses(graph: Graph) -> Iterable[Miss]:
    return fusing.reductions(graph, space.LOSSES)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    if "cross_entropy" in match.data:
        cross_entropy.apply(graph, match, parameters)
    elif "cross_entropy_maps" in match.data:
        cross_entropy_maps.apply(graph, match, parameters)
    elif "triplet" in match.data:
        triplet.apply(graph, match, parameters)
    elif "cosine_embedding" in match.data:
        cosine_embedding.apply(graph, match, parameters)
    else:
        fuse.apply(graph, match, parameters)
