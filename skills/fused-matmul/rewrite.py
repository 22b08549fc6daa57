"""Matrix products on tensor cores as accurate as float32, with the pointwise operations after
them."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.matmul import fuse as matmul
from kernel_lsp.rewrite.codegen.matmul.fuse import apply
from kernel_lsp.rewrite.codegen.matmul.fuse import matches as match
from kernel_lsp.rewrite.codegen.matmul.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses.products import matmuls as misses
from kernel_lsp.rewrite.skill import Graph, Match
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "estimate", "match", "misses", "parameters", "preconditions"]


def estimate(graph: Graph, match: Match, choice: dict[str, Any]) -> float:
    return matmul.estimate(match, choice)
