"""What a generated convolution costs beside the library's, fitted to one round on an H200
(2026-11-21).

Ranks sites and ways and keeps hopeless ones silent; the judge measures before anything is offered.
The library's time of the 13 float32 convolutions measured is met within 40 %. Not measured:
``library`` and ``rows``, estimated as sums of parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernel_lsp.rewrite.codegen.convolution.facts import Conv
from kernel_lsp.rewrite.codegen.convolution.tail import Tail
from kernel_lsp.rewrite.codegen.regions.cost import bytes_of, eager_seconds
from kernel_lsp.rewrite.graph import Graph

LIBRARY_BYTES = 2.6e12
"""Bytes a second of cuDNN's transposes and of the pass that adds the bias."""
OUR_BYTES = 4.0e12
TENSOR_FLOPS = {torch.float32: 380e12, torch.bfloat16: 600e12, torch.float16: 600e12}
TRANSPOSED_FLOPS = 40e12
"""cuDNN with 64 channels, as the gradient of a convolution: 34 TFLOP/s measured in images, 54 in
signals, with 16 channels 4 to 6 in volumes."""
FEW_FLOPS = 25e12
"""cuDNN with fewer than 16 input channels: most of its kernels there use no tensor cores."""
DEPTHWISE_FLOPS = {"eager": 4e12, "ours": 8e12}
TILE_FLOPS = {torch.float32: 100e12, torch.bfloat16: 150e12, torch.float16: 150e12}
"""``taps`` with 64 channels a tile or more; with fewer, as much less."""
GATHER_FLOPS = {"one block": 30e12, "tf32x3": 10e12, "tf32": 24e12, "native": 24e12}
ROWS_FLOPS = {"tf32x3": 20e12, "tf32": 24e12, "native": 24e12}
POINTWISE = 1.6
"""A 1 x 1 filter gathers nothing: so many times the rate of ``taps``."""
LAUNCH_S = 2e-6
IN_TURN = 2.3
"""A pool whose windows are computed one after the other costs so many times the arithmetic."""
MIN_SAVED_SHARE = 0.05
"""Share of the covered operations' own time that must be saved, by the estimate, to speak up: 0.11
promised for a 3 x 3 filter were 0.22 when measured."""


def benefit(graph: Graph, conv: Conv, tail: Tail, choice: Mapping[str, Any]) -> float:
    """Share of the target's time saved; 0 when less than MIN_SAVED_SHARE of the covered time is."""
    nodes = [conv.node, *tail.nodes]
    before = eager_conv_seconds(conv) + sum(eager_seconds(graph, node) for node in tail.nodes)
    after = our_seconds(conv, tail, choice)
    if after > before * (1.0 - MIN_SAVED_SHARE):
        return 0.0
    others = sum(eager_seconds(graph, node) for node in graph.nodes if node not in nodes)
    return round((before - after) / (before + others), 4)


def eager_conv_seconds(conv: Conv) -> float:
    """Estimated seconds of torch's convolution on contiguous tensors: input and result are
    transposed around the tensor-core kernel, and the bias is a pass of its own."""
    x, out = bytes_of(conv.x), bytes_of(conv.node)
    few = (
        conv.group_in < 16 and not conv.depthwise and conv.groups == 1
    ) or conv.is_exact_in_library
    plain = few or conv.depthwise or conv.taps == 1
    passes = 1 if plain else 6 if conv.rank == 3 else 3
    moved = passes * (x + out) + (2 * out if conv.bias is not None else 0)
    rate = (
        DEPTHWISE_FLOPS["eager"]
        if conv.depthwise
        else FEW_FLOPS
        if few
        else TENSOR_FLOPS[conv.dtype]
    )
    if conv.transposed:
        rate = TRANSPOSED_FLOPS * min(1.0, min(conv.in_channels, conv.out_channels) / 64)
    return moved / LIBRARY_BYTES + flops(conv) / rate


def our_seconds(conv: Conv, tail: Tail, choice: Mapping[str, Any]) -> float:
    """Estimated seconds of the convolution and its tail in one kernel of ours, or of the library's
    with our tail behind it, by the choice's "way"."""
    result = tail.nodes[-1] if tail.nodes else conv.node
    stored = sum(bytes_of(node) for node in (result, *tail.operands))
    x, out, way = bytes_of(conv.x), bytes_of(conv.node), choice["way"]
    if way == "library":
        library = (3 * x + out) / LIBRARY_BYTES + flops(conv) / TENSOR_FLOPS[conv.dtype]
        return library + (out + stored) / OUR_BYTES + 2 * LAUNCH_S
    work = flops(conv) / _rate(conv, choice)
    if tail.pool is not None and not choice.get("whole_windows"):
        work *= IN_TURN
    return (x + stored) / OUR_BYTES + work + LAUNCH_S


def _rate(conv: Conv, choice: Mapping[str, Any]) -> float:
    way, precision = choice["way"], choice["precision"]
    if way == "depthwise":
        return DEPTHWISE_FLOPS["ours"]
    if way == "gather":
        return GATHER_FLOPS["one block" if conv.depth <= choice["BLOCK_K"] else precision]
    if way == "rows":
        return ROWS_FLOPS[precision]
    filled = min(64, conv.out_channels // conv.groups) / 64 * (POINTWISE if conv.taps == 1 else 1.0)
    filled *= conv.group_in / (-(-conv.group_in // choice["BLOCK_K"]) * choice["BLOCK_K"])
    return TILE_FLOPS[conv.dtype] * filled / (3.0 if precision == "tf32x3" else 1.0)


def flops(conv: Conv) -> float:
    """Floating-point operations of the convolution; of a transposed one, each output is reached by
    the taps of its phase alone."""
    return (
        2.0
        * conv.batch
        * conv.out_channels
        * math.prod(conv.out)
        * conv.depth
        / math.prod(conv.phases)
    )
