"""Softmax and log-softmax with their pointwise neighbors: each row is read and written once."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.rewrite.codegen.core import space
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.codegen.groups.fuse import apply
from kernel_lsp.rewrite.codegen.groups.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses import fusing
from kernel_lsp.rewrite.skill import Graph, Match, Miss
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]


def match(graph: Graph) -> list[Match]:
    return fuse.reduction_matches(graph, space.SOFTMAX)


def misses(graph: Graph) -> Iterable[Miss]:
    return fusing.reductions(graph, space.SOFTMAX)
