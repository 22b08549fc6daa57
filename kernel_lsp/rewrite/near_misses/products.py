"""What keeps a matrix product or a convolution from a kernel of ours: asked where `product_of` and
`conv_of` say no.

Not covered: what would be right and not faster (the engine sees that), and spellings of einsum.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.convolution.facts import KEPT, RANKS, conv_of
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.matmul.operands import product_of
from kernel_lsp.rewrite.generated import Miss
from kernel_lsp.rewrite.graph import Graph, argument
from kernel_lsp.rewrite.near_misses.fusing import remedy_for, type_of

PRODUCTS = ("linear", "mm", "bmm", "matmul", "addmm")


def matmuls(graph: Graph) -> Iterator[Miss]:
    """Matrix products on a GPU that no kernel of ours takes, each with what stands in the way:
    elsewhere products are the library's."""
    for node in graph.nodes if graph.device == "cuda" else ():
        if (
            op_name(node) in PRODUCTS
            and product_of(node) is None
            and (why := _product(node)) is not None
        ):
            yield Miss(nodes=(node,), missing=why, remedy=remedy_for(why))


def convolutions(graph: Graph) -> Iterator[Miss]:
    """Convolutions on a GPU that no kernel of ours takes, each with what stands in the way."""
    for node in graph.nodes if graph.device == "cuda" else ():
        if op_name(node) not in RANKS or KEPT in node.meta or conv_of(node) is not None:
            continue
        if (why := _convolution(node)) is not None:
            yield Miss(nodes=(node,), missing=why, remedy=remedy_for(why))


def _product(node: fx.Node) -> str | None:
    if (why := type_of(node)) is not None:
        return why
    if op_name(node) == "addmm" and (argument(node, "alpha") != 1 or argument(node, "beta") != 1):
        return "addmm with factors of its own has no kernel"
    left, right = (shape_of(arg) for arg in node.all_input_nodes[-2:]) if _plain(node) else ((), ())
    if len(left) == 1 or len(right) == 1:
        return "a vector times a matrix moves the matrix once: there is nothing to tile"
    if len(right) > 2 and left[:-2] != right[:-2]:
        return f"batch dimensions that are broadcast have no kernel ({list(left)} by {list(right)})"
    return None if node.meta["val"].is_contiguous() else "the result is not contiguous"


def _plain(node: fx.Node) -> bool:
    return op_name(node) in ("mm", "bmm", "matmul") and len(node.all_input_nodes) == 2


def _convolution(node: fx.Node) -> str | None:
    if (why := type_of(node)) is not None:
        return why
    x = argument(node, "input").meta["val"]
    if (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and not x.is_contiguous()
    ):
        return "channels lie side by side already, as the library's fastest kernels read them"
    if "transpose" not in op_name(node):
        return None
    if argument(node, "groups") != 1:
        return "a transposed convolution in groups has no kernel"
    return "a transposed convolution with stride and dilation has no kernel"
