"""Layer, RMS, group and instance norm with their pointwise neighbors, in one pass where a row
fits."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.rewrite.codegen.core.space import NORMS
from kernel_lsp.rewrite.codegen.groups.fuse import apply
from kernel_lsp.rewrite.codegen.groups.fuse import norm_matches as match
from kernel_lsp.rewrite.codegen.groups.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses import fusing
from kernel_lsp.rewrite.skill import Graph, Miss
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]


def misses(graph: Graph) -> Iterable[Miss]:
    return fusing.reductions(graph, NORMS)
