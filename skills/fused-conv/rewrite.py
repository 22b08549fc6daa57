"""A convolution and the operations after it in one kernel, so that its own result is never
written."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.convolution.fuse import apply, parameters
from kernel_lsp.rewrite.codegen.convolution.fuse import matches as match
from kernel_lsp.rewrite.codegen.convolution.fuse import proofs as preconditions
from kernel_lsp.rewrite.near_misses.products import convolutions as misses

__all__ = ["apply", "match", "misses", "parameters", "preconditions"]
