"""Bilinear and bicubic resampling of images, and its gradient without atomics."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.resampling.fuse import apply
from kernel_lsp.rewrite.codegen.resampling.fuse import matches as match
from kernel_lsp.rewrite.codegen.resampling.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]
