"""Row and full reductions with the pointwise operations that feed them and follow them."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_lsp.rewrite.codegen.core import space
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.codegen.groups.fuse import apply
from kernel_lsp.rewrite.codegen.groups.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses import fusing
from kernel_lsp.rewrite.skill import Graph, Match, Miss
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]

SLOW_ALONE = ("logsumexp", "var", "std", *space.PAIRS, *space.PLACES)
"""In eager, by several kernels or passes; any other reduction by itself is near the memory's
roof."""


def match(graph: Graph) -> list[Match]:
    found = fuse.reduction_matches(graph, space.REDUCE)
    worth = [m for m in found if len(m.nodes) > 1 or op_name(m.nodes[0]) in SLOW_ALONE]
    return [match for match in worth if not fuse.is_rms(graph, match)]  # those are fused-norm's


def misses(graph: Graph) -> Iterable[Miss]:
    return fusing.reductions(graph, space.REDUCE)
