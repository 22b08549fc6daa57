"""Chains and trees of pointwise operations in one pass over memory."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.groups.fuse import apply
from kernel_lsp.rewrite.codegen.groups.fuse import pointwise_matches as match
from kernel_lsp.rewrite.codegen.groups.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses.fusing import pointwise as misses
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]
