"""Max and average pools with their pointwise neighbors in one pass, without indices."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.pooling.fuse import apply
from kernel_lsp.rewrite.codegen.pooling.fuse import matches as match
from kernel_lsp.rewrite.codegen.pooling.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]
