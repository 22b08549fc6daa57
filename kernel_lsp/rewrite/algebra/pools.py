"""One face for average and max pools in one to three dimensions, and when two in a row are one.

Windows are compared output by output, position by position: floor, ceil_mode, padding and overlap
need no case of their own. Not covered: fractional and LP pools, divisor_override, indices of max
pools."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.algebra.convolution import spread
from kernel_lsp.rewrite.graph import argument, is_op

aten = torch.ops.aten
AVERAGE = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)
MAXIMUM = (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d)
ADAPTIVE = (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d)
MAX_POSITIONS = 1 << 16
"""Longest axis whose windows are compared one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolDim:
    """One pooled dimension."""

    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    def window(self, output: int) -> range:
        """Positions of the input under one output."""
        start = output * self.stride - self.padding
        inside = (i for i in range(start, start + self.kernel * self.dilation, self.dilation))
        kept = [i for i in inside if 0 <= i < self.size]
        return range(kept[0], kept[-1] + 1, self.dilation) if kept else range(0)

    def divisor(self, output: int, counts_padding: bool) -> int:
        """What an average divides by: padding counts, but not what ceil_mode reaches beyond it."""
        start = output * self.stride - self.padding
        if counts_padding:
            return min(start + self.kernel, self.size + self.padding) - start
        return len(self.window(output))


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolNode:
    node: fx.Node
    axes: tuple[PoolDim, ...]
    counts_padding: bool = True
    """Of an average."""

    @property
    def input(self) -> fx.Node:
        """What is pooled."""
        return self.node.args[0]


def average(node: Any) -> PoolNode | None:
    """An average pool, or an adaptive one whose windows are all of one size."""
    if is_op(node, *ADAPTIVE):
        shapes = _shapes(node)
        if any(size % out for size, out in shapes):
            return None
        axes = tuple(
            PoolDim(size=s, out=o, kernel=s // o, stride=s // o, padding=0) for s, o in shapes
        )
        return PoolNode(node=node, axes=axes) if _is_batched(node, len(axes)) else None
    if not is_op(node, *AVERAGE) or argument(node, "divisor_override") is not None:
        return None
    return _pool(node, bool(argument(node, "count_include_pad")))


def maximum(node: Any) -> PoolNode | None:
    """The max pool at the node; None: it is none, or of a kind that is not covered."""
    return _pool(node, True) if is_op(node, *MAXIMUM) else None


def _pool(node: fx.Node, counts_padding: bool) -> PoolNode | None:
    shapes = _shapes(node)
    rank = len(shapes)
    window = spread(argument(node, "kernel_size"), rank)
    stride = spread(argument(node, "stride") or list(window), rank)
    padding, dilation = (
        spread(argument(node, name) or d, rank) for name, d in (("padding", 0), ("dilation", 1))
    )
    axes = tuple(
        PoolDim(size=size, out=out, kernel=w, stride=s, padding=p, dilation=d)
        for (size, out), w, s, p, d in zip(shapes, window, stride, padding, dilation, strict=True)
    )
    return (
        PoolNode(node=node, axes=axes, counts_padding=counts_padding)
        if _is_batched(node, rank)
        else None
    )


def _shapes(node: fx.Node) -> list[tuple[int, int]]:
    """(size, outputs) of each pooled dimension."""
    rank = int(node.target._schema.name[-2])
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    return list(zip(before[-rank:], after[-rank:], strict=True))


def _is_batched(node: fx.Node, rank: int) -> bool:
    return bool(node.meta["val"].dim() == rank + 2)


# --- two pools in a row ------------------------------------------------------------------


def merged_axis(
    first: PoolDim, second: PoolDim, counts: tuple[bool, bool, bool] | None
) -> PoolDim | None:
    """The one pool that does both along a dimension, or None when its windows are others.

    ``counts``: for averages, where each position must also count as much: whether the first, the
    second and the merged one count their padding. None for maxima, where only the positions
    matter."""
    made = PoolDim(
        size=first.size,
        out=second.out,
        kernel=first.kernel + (second.kernel - 1) * first.stride,
        stride=first.stride * second.stride,
        padding=first.padding + second.padding * first.stride,
    )
    if first.dilation != 1 or second.dilation != 1 or max(first.size, second.size) > MAX_POSITIONS:
        return None
    if 2 * made.padding > made.kernel or _outputs(made) != second.out:
        return None
    if counts is not None and made.kernel > made.size:
        return None  # averages in 3-D refuse windows larger than the input
    for output in range(second.out):
        if counts is not None and not _same_weights(made, first, second, output, counts):
            return None
        if counts is None and set(made.window(output)) != _reached_axes(first, second, output):
            return None
    return made


def _outputs(axis: PoolDim) -> int:
    return (axis.size + 2 * axis.padding - axis.kernel) // axis.stride + 1


def _reached_axes(first: PoolDim, second: PoolDim, output: int) -> set[int]:
    return {position for inner in second.window(output) for position in first.window(inner)}


def _same_weights(
    made: PoolDim, first: PoolDim, second: PoolDim, output: int, counts: tuple[bool, bool, bool]
) -> bool:
    outer = second.divisor(output, counts[1])
    shares: dict[int, Fraction] = {}
    for inner in second.window(output):
        share = Fraction(1, outer * first.divisor(inner, counts[0]))
        for position in first.window(inner):
            shares[position] = shares.get(position, Fraction(0)) + share
    whole = Fraction(1, made.divisor(output, counts[2]))
    return shares == dict.fromkeys(made.window(output), whole)
