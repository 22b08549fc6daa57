"""Dropout that draws, inside of a kernel: the very mask that torch would have drawn.

On CUDA torch gives each thread a stream of Philox numbers by the generator's seed and offset, and
each draw decides four elements that lie behind each other. A kernel computes the same numbers
(`_kept` in core/ops.py) for its block, in fours: `quads` numbers them. What launches such a kernel
is in backward/draws.py. Not covered: two dropouts in one kernel, feature and alpha dropout,
tensors that are not contiguous."""

from __future__ import annotations

from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.graph import argument, drops


def is_dropping(node: fx.Node) -> bool:
    """A dropout whose mask a kernel can draw."""
    if op_name(node) != "dropout" or not drops(node) or float(argument(node, "p")) >= 1.0:
        return False
    value = node.meta["val"]
    return value.dtype in FLOATS and value.is_contiguous() and value.dim() > 0


def quads(rows: str, columns: str, spread: str = "") -> str:
    """The line of a kernel that numbers its fours of elements: from ``rows`` and ``columns`` on."""
    each = f"tl.arange(0, BLOCK_SIZE // 4){spread}"
    first = " + ".join(part for part in (rows, columns, each) if part)
    return f"quads = ({first}).to(tl.int32)"
