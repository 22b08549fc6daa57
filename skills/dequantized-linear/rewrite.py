"""Linear layers of a few rows with weights of 8 or 4 bits, scaled as they are read."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.quantized.fuse import apply
from kernel_lsp.rewrite.codegen.quantized.fuse import matches as match
from kernel_lsp.rewrite.codegen.quantized.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]
