"""Attention written by hand, tile by tile: the scores and weights never reach memory."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.attention.fuse import apply
from kernel_lsp.rewrite.codegen.attention.fuse import matches as match
from kernel_lsp.rewrite.codegen.attention.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses.attention import misses
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]
