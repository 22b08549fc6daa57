"""A depthwise convolution and the operations after it in one kernel that reads and writes memory
once."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.convolution import fuse as conv_fuse
from kernel_lsp.rewrite.skill import Graph, Match, Proof


def match(graph: Graph) -> list[Match]:
    return conv_fuse.matches(graph, depthwise=True)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return conv_fuse.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return conv_fuse.parameters(graph, match)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    conv_fuse.apply(graph, match, parameters)
