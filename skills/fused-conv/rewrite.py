"""A convolution and the operations after it in one kernel, so that its own result is never
written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_lsp.rewrite.codegen.convolution import fuse as conv_fuse
from kernel_lsp.rewrite.near_misses import products
from kernel_lsp.rewrite.skill import Graph, Match, Miss, Proof


def match(graph: Graph) -> list[Match]:
    return conv_fuse.matches(graph)


def misses(graph: Graph) -> Iterable[Miss]:
    return products.convolutions(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    return conv_fuse.proofs(graph, match)


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return conv_fuse.parameters(graph, match)


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    conv_fuse.apply(graph, match, parameters)
