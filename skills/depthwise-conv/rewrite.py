"""A depthwise convolution and the operations after it in one kernel that reads and writes memory
once."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.convolution import fuse as conv_fuse
from kernel_lsp.rewrite.codegen.convolution.fuse import apply, parameters
from kernel_lsp.rewrite.codegen.convolution.fuse import proofs as preconditions
from kernel_lsp.rewrite.skill import Graph, Match

__all__ = ["apply", "match", "parameters", "preconditions"]


def match(graph: Graph) -> list[Match]:
    return conv_fuse.matches(graph, depthwise=True)
