"""One scan in the graph with what is fused with it, and where its operands lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS
from kernel_lsp.rewrite.codegen.regions import chain

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan(chain.Surrounded):
    """One scan in the graph and what is fused with it. ``seed`` is the cumsum or cumprod node,
    ``result`` its value at unflipped places: the seed, or the flip behind it."""

    root: fx.Node
    """What is scanned: pointwise of operands, at unflipped places."""
    shift: int
    """Zeros in front of ``root`` along the dimension."""
    sizes: tuple[int, ...]
    dim: int
    reverse: bool
    inner: tuple[fx.Node, ...]
    """flips, cats and pads that the kernel's indices replace."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes that the kernel replaces, in order."""
        tail = () if self.result is self.seed else (self.result,)
        return tuple(dict.fromkeys([*self.prologue, *self.inner, self.seed, *tail, *self.epilogue]))

    @property
    def lines(self) -> int:
        """Runs of elements that are scanned, each by itself."""
        return math.prod(self.sizes) // self.sizes[self.dim]

    @property
    def n_inner(self) -> int:
        """How far apart in memory neighbors of a line are, in elements."""
        return math.prod(self.sizes[self.dim + 1 :])

    @property
    def groups(self) -> list[list[int]]:
        """Dimensions before, of and after the scan."""
        rank = len(self.sizes)
        return [list(range(self.dim)), [self.dim], list(range(self.dim + 1, rank))]


def locator(scan: Scan, *, shifted: bool) -> Callable[[fx.Node], tuple[int, ...] | None]:
    """Where operands lie; before the scan they are shorter by the shift."""
    sizes = list(scan.sizes)
    if shifted:
        sizes[scan.dim] -= scan.shift

    def locate(node: fx.Node) -> tuple[int, ...] | None:
        axes = chain.grouped_axes(sizes, scan.groups, node)
        return axes if node.meta["val"].dtype in (*FLOATS, *WHOLE) else None

    return locate
