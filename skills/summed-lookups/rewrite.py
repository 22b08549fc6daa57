"""Bags of embeddings in one pass, and gradients of tables by sorted indices."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.lookups.fuse import apply, misses
from kernel_lsp.rewrite.codegen.lookups.fuse import matches as match
from kernel_lsp.rewrite.codegen.lookups.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]
