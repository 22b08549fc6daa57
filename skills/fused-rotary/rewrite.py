"""Rotary position embeddings in one pass, forwards and backwards."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.rotary.fuse import apply
from kernel_lsp.rewrite.codegen.rotary.fuse import matches as match
from kernel_lsp.rewrite.codegen.rotary.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]
