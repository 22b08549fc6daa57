"""Cumulative sums and products with their flips, shifts, masks and pointwise neighbors in one
pass."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.scan.fuse import apply
from kernel_lsp.rewrite.codegen.scan.fuse import matches as match
from kernel_lsp.rewrite.codegen.scan.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]
