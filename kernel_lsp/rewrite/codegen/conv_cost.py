"""What a generated convolution costs beside the library's, by arithmetic.

Ranks sites and keeps hopeless ones silent; the judge measures before anything is offered.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from kernel_lsp.rewrite import cost
from kernel_lsp.rewrite.codegen.conv_facts import Conv
from kernel_lsp.rewrite.codegen.conv_tail import Tail
from kernel_lsp.rewrite.codegen.cost import TRITON_OVERHEAD_S, bytes_of, eager_seconds
from kernel_lsp.rewrite.graph import Graph

LIBRARY_FLOPS = {torch.float32: 200e12, torch.bfloat16: 450e12, torch.float16: 450e12}
OUR_FLOPS = {torch.float32: 90e12, torch.bfloat16: 200e12, torch.float16: 200e12}
EXACT_FLOPS = 35e12
"""float32 sums as three TF32 products each."""
DEPTHWISE_FLOPS = {"library": 4e12, "ours": 15e12}
LEAST = 0.1
"""Share of the covered operations' own time that must be saved, by the estimate, to speak up."""


def benefit(graph: Graph, conv: Conv, tail: Tail, *, exact: bool) -> float:
    """Share of the target's time saved; 0 when less than LEAST of the covered time is."""
    nodes = [conv.node, *tail.nodes]
    before = library_seconds(graph, conv) + sum(eager_seconds(graph, node) for node in tail.nodes)
    after = our_seconds(graph, conv, tail, exact=exact)
    if after > before * (1.0 - LEAST):
        return 0.0
    others = sum(eager_seconds(graph, node) for node in graph.nodes if node not in nodes)
    return round((before - after) / (before + others), 4)


def library_seconds(graph: Graph, conv: Conv) -> float:
    """cuDNN on contiguous tensors: input and result are transposed around the tensor-core kernel, and the
    bias is a pass of its own."""
    speed = cost.RATES.get(graph.device, cost.RATES["cpu"])
    x, out = bytes_of(conv.x), bytes_of(conv.node)
    depthwise = conv.group_in == 1 and conv.groups > 1
    moved = x + out if depthwise or conv.group_in < 8 else 3 * (x + out)
    moved += 2 * out if conv.bias is not None else 0
    rate = DEPTHWISE_FLOPS["library"] if depthwise else LIBRARY_FLOPS[conv.dtype]
    return max(moved / speed.bytes_per_s, _flops(conv) / rate) + 2 * speed.overhead_s


def our_seconds(graph: Graph, conv: Conv, tail: Tail, *, exact: bool) -> float:
    speed = cost.RATES.get(graph.device, cost.RATES["cpu"])
    moved = bytes_of(conv.x) + sum(bytes_of(node) for node in tail.operands) + bytes_of(_result(conv, tail))
    if conv.group_in == 1 and conv.groups > 1:
        rate = DEPTHWISE_FLOPS["ours"]
    else:
        rate = EXACT_FLOPS if exact and conv.dtype == torch.float32 else OUR_FLOPS[conv.dtype]
    return moved / speed.bytes_per_s + _flops(conv) / rate + TRITON_OVERHEAD_S


def _result(conv: Conv, tail: Tail) -> fx.Node:
    return tail.nodes[-1] if tail.nodes else conv.node


def _flops(conv: Conv) -> float:
    return 2.0 * conv.batch * conv.out_channels * math.prod(conv.out) * conv.depth
