"""Sizes of a convolution or pooling node, in one shape for 1, 2 and 3 spatial dimensions.

Not covered: transposed convolutions with groups or with dilation along a stride, inputs without a
batch dimension, overlapping or padded pools."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.graph import argument

KEPT = "kept"
"""Mark of a convolution that stays the library's: a skill has prepared what follows for that."""
RANKS = {f"conv{kind}{rank}d": rank for kind in ("", "_transpose") for rank in (1, 2, 3)}
POOLS = {f"{kind}_pool{rank}d": (kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv:
    """One convolution; tuples hold one number for each spatial dimension."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: tuple[int, ...]
    before: tuple[int, ...]
    """Zeros in front of each dimension; the output's size tells how many lie behind."""
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    """The weight is (in, out, taps); ``before`` is what is cut off, and the strides are
    ``phases``."""
    phases: tuple[int, ...] = ()
    """Strides of a transposed convolution."""

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.stride)

    @property
    def size(self) -> tuple[int, ...]:
        """The input's spatial sizes."""
        return shape_of(self.x)[2:]

    @property
    def out(self) -> tuple[int, ...]:
        """The result's spatial sizes."""
        return shape_of(self.node)[2:]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window's size along each spatial dimension."""
        return shape_of(self.weight)[2:]

    @property
    def taps(self) -> int:
        """The number of elements in a window."""
        return math.prod(self.kernel)

    @property
    def in_channels(self) -> int:
        """Channels of the input, all groups together."""
        return shape_of(self.x)[1]

    @property
    def group_in(self) -> int:
        """Input channels that one output channel reads."""
        return self.in_channels // self.groups

    @property
    def out_channels(self) -> int:
        """Channels of the result, all groups together."""
        return shape_of(self.node)[1]

    @property
    def batch(self) -> int:
        """The number of images."""
        return shape_of(self.x)[0]

    @property
    def depth(self) -> int:
        """Products summed for each output."""
        return self.group_in * self.taps

    @property
    def is_exact_in_library(self) -> bool:
        """cuDNN multiplies in float32 where others of its size would get TF32: images with few
        channels on both sides (H200: 16 to 32, 16 to 48 and 24 to 32, not 16 to 64, 24 to 64, 32
        to 48 nor 48 to 16), and groups (3 of 80 channels)."""
        if self.dtype != torch.float32 or self.transposed or self.depthwise:
            return False
        return self.groups > 1 or (self.rank == 2 and self.group_in < 32 and self.out_channels < 64)

    @property
    def depthwise(self) -> bool:
        """Whether each output channel reads one input channel, of several."""
        return self.group_in == 1 and self.groups > 1

    @property
    def padded(self) -> bool:
        """Whether some tap of some pixel lies outside of the input."""
        if self.transposed:
            return self.taps > 1 or self.size != self.out
        return any(self.before) or any(
            (o - 1) * s + (k - 1) * d >= n
            for o, s, k, d, n in zip(
                self.out, self.stride, self.kernel, self.dilation, self.size, strict=True
            )
        )

    @property
    def symmetric(self) -> bool:
        """Whether there are as many zeros behind as before: the library takes one number for
        both."""
        return all(
            o == (n + 2 * b - d * (k - 1) - 1) // s + 1
            for o, n, b, d, k, s in zip(
                self.out,
                self.size,
                self.before,
                self.dilation,
                self.kernel,
                self.stride,
                strict=True,
            )
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of the result."""
        found: torch.dtype = self.node.meta["val"].dtype
        return found


def conv_of(node: fx.Node) -> Conv | None:
    """None for what is no batched float convolution, for empty tensors and for what stays the
    library's: it is marked, or somebody has put the channels of a pixel side by side for it."""
    rank = RANKS.get(op_name(node))
    if rank is None or KEPT in node.meta or not _is_generated(node, rank):
        return None
    x, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
    stride, dilation = (_tuple(argument(node, name), rank) for name in ("stride", "dilation"))
    before = _before(argument(node, "padding"), shape_of(weight)[2:], dilation)
    transposed, phases = "transpose" in op_name(node), tuple[int, ...]()
    if transposed:
        stride, phases = (1,) * rank, stride
        along = any(s > 1 and d > 1 for s, d in zip(phases, dilation, strict=True))
        if argument(node, "groups") != 1 or along:
            return None
    return Conv(
        node=node,
        x=x,
        weight=weight,
        bias=bias,
        stride=stride,
        before=before,
        dilation=dilation,
        groups=int(argument(node, "groups", 1)),
        transposed=transposed,
        phases=phases,
    )


def _is_generated(node: fx.Node, rank: int) -> bool:
    """A batch of elements of one float type, in the usual layout."""
    items = (argument(node, "input"), argument(node, "weight"))
    values = [item.meta["val"] for item in items if isinstance(item, fx.Node)]
    if len(values) != 2 or any(v.dim() != rank + 2 or v.numel() == 0 for v in values):
        return False
    if values[0].dtype not in FLOATS or values[0].dtype != values[1].dtype:
        return False
    return not _channels_last(values[0]) and bool(shape_of(node)) and 0 not in shape_of(node)


def _channels_last(value: torch.Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return (
        form is not None and value.is_contiguous(memory_format=form) and not value.is_contiguous()
    )


def _before(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":  # an odd zero goes behind
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return _tuple(padding, len(kernel))


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedPool:
    """Windows that do not overlap and lie inside."""

    kind: str
    """``max`` or ``avg``."""
    window: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of elements in a window."""
        return math.prod(self.window)


def pool_of(node: fx.Node) -> FusedPool | None:
    """The pool at the node; None for what is no pool, or one with padding, gaps, overlap, dilation
    or partial windows."""
    kind, rank = POOLS.get(op_name(node), ("", 0))
    if not kind:
        return None
    window = _tuple(argument(node, "kernel_size"), rank)
    stride = _tuple(argument(node, "stride") or window, rank)
    plain = not argument(node, "ceil_mode") and argument(node, "divisor_override") is None
    plain = plain and not any(_tuple(argument(node, "padding"), rank))
    plain = plain and set(_tuple(argument(node, "dilation", 1), rank)) == {1}
    return FusedPool(kind=kind, window=window) if plain and stride == window else None


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else list(value)
    return tuple(int(n) for n in (items * rank if len(items) == 1 else items))
