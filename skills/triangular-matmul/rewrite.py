"""Products of triangular matrices, and triangles of products: blocks of zeros are skipped."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.matmul import fuse as matmul
from kernel_lsp.rewrite.codegen.matmul.fuse import apply
from kernel_lsp.rewrite.codegen.matmul.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import Graph, Match
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "estimate", "match", "parameters", "preconditions"]


def match(graph: Graph) -> list[Match]:
    return matmul.matches(graph, triangular=True)


def estimate(graph: Graph, match: Match, choice: dict[str, Any]) -> float:
    return matmul.estimate(match, choice)
