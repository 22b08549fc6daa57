"""One face for conv1d … conv3d and their transposes: sizes by dimension, and which inputs meet
which tap.

`read(node) -> Convolution | None`. Names: input position ``i``, output position ``o``, tap ``k``.
A convolution meets ``i = o * stride - padding + k * dilation``, a transposed one ``o = i * stride
- padding + k * dilation``; both leave out what falls off the other side. Not covered: inputs
without a batch dimension, ``padding="same"`` that pads one side more than the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
PLAIN, TRANSPOSED = cost.CONVOLUTIONS, cost.TRANSPOSED
PLAIN_FLOPS, TRANSPOSED_FLOPS = 70e12, 32e12
"""What cuDNN reaches in TF32 on an H200 with 64 channels: 73 and 54, 34 and 26 TFLOP/s in 2-D and
1-D."""
FULL_CHANNELS = 64
"""Fewer fill its tiles in part: 16 channels reached 18 to 20 and 4 to 6 TFLOP/s (3-D, and groups
of 16)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvolutionDim:
    """One spatial dimension."""

    size: int
    """Positions of the input."""
    out: int
    """Positions of the output."""
    kernel: int
    stride: int
    padding: int
    output_padding: int
    dilation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """See the top of the file.

    The weight is (out, in / groups, *kernel), that of a transposed one (in, out / groups, *kernel).
    """

    node: fx.Node
    transposed: bool
    axes: tuple[ConvolutionDim, ...]
    groups: int
    in_channels: int
    out_channels: int

    @property
    def input(self) -> fx.Node:
        """What is convolved."""
        return self.node.args[0]

    @property
    def weight(self) -> fx.Node:
        """The weight, in the layout of its operation."""
        return argument(self.node, "weight")

    @property
    def bias(self) -> fx.Node | None:
        """The bias; None: it has none."""
        return argument(self.node, "bias")


def read(node: Any) -> Convolution | None:
    """The convolution behind a call; None for other calls and for what the top of the file leaves
    out."""
    if not is_op(node, *PLAIN, *TRANSPOSED):
        return None
    transposed = is_op(node, *TRANSPOSED)
    value, weight, out = (n.meta["val"] for n in (node.args[0], argument(node, "weight"), node))
    rank = weight.dim() - 2
    if value.dim() != rank + 2:
        return None
    settings = {name: spread(argument(node, name), rank) for name in ("stride", "dilation")}
    kernel = tuple(weight.shape[2:])
    padding = _padding(argument(node, "padding"), kernel, settings["dilation"])
    if padding is None:
        return None
    extra = spread(argument(node, "output_padding") if transposed else 0, rank)
    axes = tuple(
        ConvolutionDim(
            size=value.shape[d + 2],
            out=out.shape[d + 2],
            kernel=kernel[d],
            stride=settings["stride"][d],
            padding=padding[d],
            output_padding=extra[d],
            dilation=settings["dilation"][d],
        )
        for d in range(rank)
    )
    return Convolution(
        node=node,
        transposed=transposed,
        axes=axes,
        groups=argument(node, "groups"),
        in_channels=value.shape[1],
        out_channels=out.shape[1],
    )


def spread(value: Any, rank: int) -> tuple[int, ...]:
    """An int or a list as one number for each dimension."""
    sizes = [value] if isinstance(value, int) else list(value)
    return tuple(sizes * rank if len(sizes) == 1 else sizes)


def _padding(value: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...] | None:
    if value == "valid":
        return (0,) * len(kernel)
    if value == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple(r // 2 for r in reach) if all(r % 2 == 0 for r in reach) else None
    return spread(value, len(kernel))


def positions(axis: ConvolutionDim, transposed: bool) -> tuple[range, ...]:
    """The input positions that each tap meets once while the output is walked through.

    They are what is summed when the output is: sum over o of y[o] = sum over k of w[k] * sum of x
    over these."""
    return tuple(
        _met(axis, transposed, k * axis.dilation - axis.padding) for k in range(axis.kernel)
    )


def _met(axis: ConvolutionDim, transposed: bool, shift: int) -> range:
    if not transposed:  # i = o * stride + shift for 0 <= o < out, and 0 <= i < size
        first = max(0, -(shift // axis.stride))
        last = min(axis.out - 1, (axis.size - 1 - shift) // axis.stride)
        start = first * axis.stride + shift
        return (
            range(start, last * axis.stride + shift + 1, axis.stride) if last >= first else range(0)
        )
    # o = i * stride + shift, and 0 <= o < out
    first = max(0, -(shift // axis.stride))
    last = min(axis.size - 1, (axis.out - 1 - shift) // axis.stride)
    return range(first, last + 1) if last >= first else range(0)


def as_plain_weight(graph: Graph, made: Convolution, here: fx.Node) -> fx.Node:
    """The transposed convolution's weight as a plain one's: (out, in / groups, *kernel), taps
    reversed."""
    spatial = list(range(2, 2 + len(made.axes)))
    weight = made.weight
    if made.groups > 1:
        shape = [made.groups, made.in_channels // made.groups]
        weight = graph.call(aten.unflatten.int, (weight, 0, shape), before=here)
        weight = graph.call(aten.transpose.int, (weight, 1, 2), before=here)
        weight = graph.call(aten.flatten.using_ints, (weight, 0, 1), before=here)
    else:
        weight = graph.call(aten.transpose.int, (weight, 0, 1), before=here)
    flipped = [dim for dim, axis in zip(spatial, made.axes, strict=True) if axis.kernel > 1]
    return graph.call(aten.flip.default, (weight, flipped), before=here) if flipped else weight


def by_output(
    graph: Graph, weight: fx.Node, vector: fx.Node, transposed: bool, groups: int, here: fx.Node
) -> fx.Node:
    """``vector``, one value for each output channel (or one for all), shaped to multiply the
    weight."""
    if graph.fact(vector).numel == 1:
        return vector
    spatial = [1] * (len(graph.fact(weight).shape) - 2)
    if not transposed:
        return graph.call(aten.view.default, (vector, [-1, 1, *spatial]), before=here)
    if groups == 1:
        return graph.call(aten.view.default, (vector, [1, -1, *spatial]), before=here)
    # (in, out / groups, …): all inputs of a group share its outputs.
    inside, outside = graph.fact(weight).shape[0] // groups, graph.fact(weight).shape[1]
    rows = graph.call(aten.view.default, (vector, [groups, outside]), before=here)
    rows = graph.call(aten.repeat_interleave.self_int, (rows, inside, 0), before=here)
    return graph.call(aten.view.default, (rows, [groups * inside, outside, *spatial]), before=here)


def rate(graph: Graph, made: Convolution, transposed: bool) -> float:
    """Operations a second that a library convolution with these channels does."""
    if graph.device != "cuda":
        return cost.rates(graph).flops_per_s
    few = min(made.in_channels, made.out_channels) / made.groups
    return min(1.0, few / FULL_CHANNELS) * (TRANSPOSED_FLOPS if transposed else PLAIN_FLOPS)


def library_seconds(graph: Graph, made: Convolution) -> float:
    """Time of the library call, with the pass of its own that a bias takes on a GPU."""
    if graph.device != "cuda":
        return cost.seconds(graph, made.node)
    rates, out = cost.rates(graph), cost.moved_bytes_of(graph, made.node)
    bias = 2 * out / rates.bytes_per_s + rates.overhead_s if made.bias is not None else 0.0
    moved = cost.moved_bytes(made.node) / rates.bytes_per_s
    return (
        max(moved, cost.flops(made.node) / rate(graph, made, made.transposed))
        + bias
        + rates.overhead_s
    )
