"""Row and full reductions with the pointwise operations that feed them and follow them."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen import fuse, space
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    found = fuse.reduction_matches(graph, space.REDUCE)
    return [match for match in found if not fuse.is_rms(graph, match)]  # those are fused-norm's


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return fuse.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return fuse.parameters(graph, match)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    fuse.apply(graph, match, parameters)
