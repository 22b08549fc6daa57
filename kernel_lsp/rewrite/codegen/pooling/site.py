"""One pool in the graph with what is fused with it, and where its operands lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS
from kernel_lsp.rewrite.codegen.regions import chain


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One dimension of a pool."""

    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def inside(self) -> bool:
        """No window reaches past either edge."""
        return (
            self.padding == 0
            and (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation < self.size
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRegion(chain.Surrounded):
    """One pool in the graph and what is fused with it. ``result`` is the seed, or the part of its
    result that is the values."""

    kind: str
    """max or avg."""
    windows: tuple[Window, ...]
    count_include_pad: bool
    divisor: int | None

    @property
    def root(self) -> fx.Node:
        """What is pooled, behind the prologue."""
        return self.seed.args[0]

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes that the kernel replaces, in order."""
        return tuple(dict.fromkeys([*self.prologue, self.seed, self.result, *self.epilogue]))

    @property
    def taps(self) -> int:
        """Elements of one window."""
        return math.prod(window.kernel for window in self.windows)

    @property
    def everything(self) -> bool:
        """One window, over the whole plane."""
        return all(
            w.out == 1 and w.kernel == w.size and w.inside and w.dilation == 1 for w in self.windows
        )


def locator(sizes: tuple[int, ...], rank: int) -> chain.Locate:
    """Operands vary along the batch (0), the channels (1) and the places of a plane (2)."""
    lead = len(sizes) - rank
    groups = [list(range(lead - 1)), [lead - 1], list(range(lead, len(sizes)))]

    def locate(node: fx.Node) -> tuple[int, ...] | None:
        axes = chain.grouped_axes(sizes, groups, node)
        full = axes is not None and tuple(node.meta["val"].shape) == sizes
        if full:
            return (0, 1, 2)
        return (
            axes
            if axes in ((), (1,), (2,), (1, 2)) and node.meta["val"].dtype in (*FLOATS, torch.bool)
            else None
        )

    return locate
