"""max(dim) and min(dim) with values and places in one pass."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.extremes.fuse import apply, misses
from kernel_lsp.rewrite.codegen.extremes.fuse import matches as match
from kernel_lsp.rewrite.codegen.extremes.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]
