"""What a fused kernel saves, from bytes and launches, on top of
:mod:`kernel_lsp.rewrite.cost.operations`.

Only ranks sites and keeps hopeless ones silent; the judge measures before anything is offered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core.ir import Output, Region, topological
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.space import LOSSES, PLACES, SOFTMAX, space_of
from kernel_lsp.rewrite.codegen.core.strides import is_copy
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, is_identity
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.cost.operations import rates as rates
from kernel_lsp.rewrite.graph import Graph, argument

LONG_ROW = 2048
"""Elements from which a softmax of torch is taken to walk a row more than once; measured: 8192,
50000."""
TRITON_OVERHEAD_S = 12e-6
"""Assumed, not measured: Triton's launcher is Python, taken as twice an eager launch."""
AUTOGRAD_OVERHEAD_S = 25e-6
"""Assumed, not measured: torch.autograd.Function runs Python in both directions, eager's nodes do
not."""

SHORT = ("smooth_l1_loss", "binary_cross_entropy")
"""Losses of one kernel and a mean."""
# Composite operations run as several kernels in eager: (times the input is moved, launches).
COMPOSITE = {
    "rms_norm": (6.0, 5),
    "instance_norm": (3.0, 3),
    "logsumexp": (5.0, 4),
    "smooth_l1_loss": (1.5, 2),
    "cross_entropy_loss": (3.0, 2),
    "cosine_similarity": (5.0, 8),
    "pairwise_distance": (3.0, 3),
    "triplet_margin_loss": (4.0, 10),
    # H200: 0.18 ms where bytes take 0.125 (16384 x 4096), 0.15 for 0.062 (65536 x 512)
    "layer_norm": (1.8, 1),
    "group_norm": (4.0, 2),  # 0.18 ms where bytes take 0.062 (32 x 256 x 64 x 64)
    **dict.fromkeys(("var", "std"), (2.4, 1)),  # 0.076 ms where bytes take 0.031 (4096 x 8192)
    # H200: 0.444 ms where bytes take 0.191 (8192 x 50257), 0.055 for 0.018 (16 x 151 x 127 x 129,
    # middle), 0.051 for 0.005 (65536 x 151)
    **dict.fromkeys(PLACES, (2.3, 1)),
    "binary_cross_entropy": (2.0, 2),
    "cosine_embedding_loss": (5.0, 16),
    **dict.fromkeys([name for name in LOSSES if name not in SHORT], (2.5, 3)),
}


LONG_ROWS, ACROSS = (3.0, 1), (8.0, 1)
"""A softmax of torch over long rows (H200: 0.143 ms where bytes take 0.062, 4096 x 8192), and over
another dimension than the last (4.985 ms there; less for few channels, so counted with
caution)."""


ROW_BLOCKS = REFERENCE.processors
"""Multiprocessors of an H200. Eager gives each row of a layer norm, each group of a group norm, to
one block, and fewer rows leave the others idle."""
MAX_IDLE = 16.0
"""Times slower that idle multiprocessors are taken to make it; assumed, not measured."""


def _idle(node: fx.Node) -> float:
    space = space_of(node)
    if space is None or op_name(node) not in ("layer_norm", "group_norm"):
        return 1.0
    rows = math.prod(n for axis, n in enumerate(space.expanded) if axis not in space.reduced)
    return min(MAX_IDLE, max(1.0, ROW_BLOCKS / max(1, rows)))


def _passes(node: fx.Node) -> tuple[float, int]:
    """How often eager moves the input, and its launches."""
    name = op_name(node)
    if (idle := _idle(node)) > 1.0:
        return COMPOSITE[name][0] * idle, COMPOSITE[name][1]
    if name not in SOFTMAX or not node.meta["val"].shape:
        return COMPOSITE.get(name, (1.0, 1))
    shape = node.meta["val"].shape
    dim = argument(node, "dim") % len(shape)
    if dim != len(shape) - 1:
        return ACROSS
    return LONG_ROWS if shape[dim] > LONG_ROW else (1.0, 1)


def _copies_first(node: fx.Node) -> bool:
    """Whether eager lays the input out anew: heads cut from one product, a transposed tensor."""
    if op_name(node) not in (*SOFTMAX, "layer_norm", "group_norm"):
        return False
    value: torch.Tensor = node.args[0].meta["val"]
    return not value.is_contiguous()


def eager_seconds(graph: Graph, node: fx.Node) -> float:
    """One node in eager mode. Kept on the node, as `cost.seconds` is."""
    if "eager_seconds" not in node.meta:
        node.meta["eager_seconds"] = _eager_seconds(graph, node)
    return float(node.meta["eager_seconds"])


def _eager_seconds(graph: Graph, node: fx.Node) -> float:
    if is_identity(node) and not is_copy(node):
        return 0.0
    base = cost.seconds(graph, node)
    passes, launches = _passes(node)
    speed = rates(graph)
    moved = sum(bytes_of(arg) for arg in node.all_input_nodes)
    if _copies_first(node):
        passes, launches = passes + 2.0, launches + 1
    return base + (passes - 1.0) * moved / speed.bytes_per_s + (launches - 1) * speed.overhead_s


def fused_seconds(graph: Graph, lowered: LoweredRegion, launches: int, passes: float) -> float:
    """The generated kernel: operands read ``passes`` times, outputs written once."""
    moved = sum(bytes_of(node) for node in lowered.inputs) * passes + sum(
        bytes_of(node) for node in lowered.outputs
    )
    return launched_seconds(graph, moved / rates(graph).bytes_per_s, launches)


def launched_seconds(graph: Graph, moving_s: float, launches: int) -> float:
    """Kernels of ours that move for so long. The device works while the host prepares the next
    launch: the longer of the two counts."""
    return max(moving_s + launches * rates(graph).overhead_s, launches * TRITON_OVERHEAD_S)


def read_once_seconds(graph: Graph, nodes: Sequence[fx.Node], launches: int) -> float:
    """Estimated seconds of a kernel that moves the values of these nodes once."""
    moved = sum(bytes_of(node) for node in nodes)
    return launched_seconds(graph, moved / rates(graph).bytes_per_s, launches)


BACKWARD = {
    **dict.fromkeys(("add", "sub", "rsub", "sum", "mean", "neg", "to", "_to_copy", "dropout"), 0.5),
    **dict.fromkeys(("mul", "div", "layer_norm", "group_norm", "instance_norm", "rms_norm"), 2.0),
    "where": 2.2,
    "addcmul": 2.4,
    "lerp": 1.3,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "glu"), 2.8),
}
"""Time of an operation's backward over its forward's, by what it moves; 1.5 (gradient and saved
tensor in, gradient out) for the others. From `where` on: what a step of each took on an H100
(benchmarks/results/training-times-h100-2026-11-26.json) less a forward at copy speed."""


def trained_seconds(graph: Graph, node: fx.Node) -> float:
    """One node's forward and backward in eager mode."""
    return eager_seconds(graph, node) * (1.0 + _backward_ratio(node))


def _backward_ratio(node: fx.Node) -> float:
    """Time of the backward over the forward's. A sum of tensors of one shape hands its gradient
    on; where one is broadcast, its gradient is a sum."""
    name = op_name(node)
    shapes = {getattr(arg.meta.get("val"), "shape", None) for arg in node.all_input_nodes}
    if name == "add" and shapes == {node.meta["val"].shape}:
        return 0.0
    return BACKWARD.get(name, 1.5)


def trained_benefit(
    graph: Graph, nodes: Sequence[fx.Node], ours_s: float, launches: int, least: float
) -> float:
    """The share of the graph's time that is saved over forward and backward together, where ours take
    ``ours_s`` and launch so many kernels; 0 where less than ``least`` of the nodes' time is."""
    eager_s = sum(trained_seconds(graph, node) for node in nodes)
    ours_s = max(ours_s, host_seconds(launches))
    if ours_s > eager_s * (1.0 - least):
        return 0.0
    return round(
        (eager_s - ours_s) / max(sum(trained_seconds(graph, n) for n in graph.nodes), eager_s), 4
    )


def host_seconds(launches: int) -> float:
    """What Python takes for a Function of ours in both directions. Only short kernels see it."""
    return launches * TRITON_OVERHEAD_S + AUTOGRAD_OVERHEAD_S


def region_seconds(graph: Graph, region: Region, launches: int, passes: float) -> float:
    """A kernel from its region alone: operands read ``passes`` times, outputs written once."""
    values = topological(output.value for output in region.outputs)
    read = {value.operand for value in values}  # others only give a gradient its shape
    operands = [operand for operand in region.operands if operand in read]
    moved = sum(_region_bytes(region, o.axes, o.dtype) for o in operands) * passes
    moved += sum(_region_bytes(region, _axes(region, o), o.dtype) for o in region.outputs)
    return launched_seconds(graph, moved / rates(graph).bytes_per_s, launches)


def summing_seconds(graph: Graph, region: Region, stored: str) -> float:
    """``sum`` of PyTorch over one output of the region, or over a tensor of its size."""
    speed = rates(graph)
    for output in region.outputs:
        if output.name == stored:
            moved = _region_bytes(region, _axes(region, output), output.dtype)
            return moved / speed.bytes_per_s + speed.overhead_s
    return _region_bytes(region, tuple(range(len(region.dims))), "float32") / speed.bytes_per_s


def _axes(region: Region, output: Output) -> tuple[int, ...]:
    """A few lines of sums count as nothing."""
    if output.columns or output.segments:
        return ()
    return region.row_axes if output.rowwise else tuple(range(len(region.dims)))


def _region_bytes(region: Region, axes: tuple[int, ...], dtype: str) -> int:
    return math.prod(region.dims[axis].size for axis in axes) * getattr(torch, dtype).itemsize


def benefit(graph: Graph, nodes: Sequence[fx.Node], fused_s: float, least: float) -> float:
    """Share of the target's time saved; 0 when less than ``least`` of the nodes' own time is."""
    eager_s = sum(eager_seconds(graph, node) for node in nodes)
    if fused_s > eager_s * (1.0 - least):
        return 0.0
    total = max(sum(eager_seconds(graph, node) for node in graph.nodes), cost.total(graph))
    return round((eager_s - fused_s) / total, 4)


def bytes_of(node: fx.Node) -> int:
    """Bytes of the node's value, of all of them where it has several; 0 where it is no tensor."""
    value = node.meta.get("val")
    items = value if isinstance(value, (tuple, list)) else [value]
    return sum(t.numel() * t.element_size() for t in items if isinstance(t, torch.Tensor))


def share_of(graph: Graph, eager_s: float, ours_s: float, least: float) -> float:
    """Share of the target's time that a kernel saves which takes ``ours_s`` where eager takes
    ``eager_s``, in training both ways; 0 when it is less than ``least`` of these."""
    if ours_s > eager_s * (1.0 - least):
        return 0.0
    rest = cost.total(graph) * (2.5 if graph.gradients else 1.0)
    return round((eager_s - ours_s) / max(rest, eager_s), 4)
