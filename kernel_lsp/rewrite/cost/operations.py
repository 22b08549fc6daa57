"""Rough cost of each call, from bytes and operations: to rank sites and to refuse bad ones.

Not a prediction of time: no cache, no launch overhead beyond a constant. Rates are those of the
graph's device (kernel_lsp/devices)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from kernel_lsp.devices import REFERENCE, DeviceDescription
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
VIEWS = (
    aten.view, aten.t, aten.transpose, aten.permute, aten.unsqueeze, aten.squeeze, aten.expand,
    aten.numpy_T, aten.mT, aten.slice, aten.select, aten.detach, aten.flatten, aten.unflatten,
    aten.narrow,
)  # fmt: skip
CONVOLUTIONS = (aten.conv1d, aten.conv2d, aten.conv3d)
TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
TRANSCENDENTAL = (
    aten.exp, aten.log, aten.tanh, aten.sigmoid, aten.gelu, aten.softmax, aten.log_softmax,
    aten.erf, aten.silu, aten.mish, aten.softplus, aten.logsumexp, aten.elu, aten.selu, aten.pow,
)  # fmt: skip


def rates(graph: Graph) -> DeviceDescription:
    """Returns the rates of the device that the target will run on."""
    return graph.hardware


def gpu_rates(graph: Graph) -> DeviceDescription:
    """Returns the same, and the reference GPU's for a target on a CPU: of kernels that a CPU
    interprets."""
    return graph.hardware if graph.device == "cuda" else REFERENCE


def seconds(graph: Graph, node: fx.Node) -> float:
    """Roofline time of one call on the graph's device. Kept on the node: each of n matches asks
    for the total of n nodes (92 s for 260 products in a loop), and a rewrite never changes a
    call's sizes."""
    if "seconds" not in node.meta:
        node.meta["seconds"] = _seconds(graph, node)
    return float(node.meta["seconds"])


def _seconds(graph: Graph, node: fx.Node) -> float:
    if is_op(node, *VIEWS) or getattr(node.target, "__name__", "") == "getitem":
        return 0.0
    here = rates(graph)
    return (
        max(moved_bytes(node) / here.bytes_per_s, flops(node) / here.flops_per_s) + here.overhead_s
    )


def total(graph: Graph) -> float:
    """Estimated seconds of all calls of the graph, never 0."""
    return sum(seconds(graph, node) for node in graph.nodes) or 1e-9


def share(graph: Graph, saved_seconds: float) -> float:
    """``benefit`` of a Match: the part of the target's time that is saved, 0..1."""
    return max(0.0, min(1.0, saved_seconds / total(graph)))


def moved_bytes(node: fx.Node) -> int:
    """Bytes read and written, each tensor once."""
    return sum(_bytes(arg.meta.get("val")) for arg in node.all_input_nodes) + _bytes(
        node.meta.get("val")
    )


def traffic(graph: Graph) -> tuple[int, int]:
    """(bytes of the inputs, parameters and buffers that are used; bytes of the results), each
    once: what any rewrite moves, unless results do not depend on all of an input."""
    given = [node for node in graph.fx.nodes if node.op == "placeholder" and node.users]
    results = {item for item in graph.outputs if isinstance(item, fx.Node) and item not in given}
    return sum(_bytes(n.meta.get("val")) for n in given), sum(
        _bytes(n.meta.get("val")) for n in results
    )


def flops(node: fx.Node) -> float:
    """Floating-point operations of the call, roughly; a transcendental function counts for ten."""
    out = node.meta.get("val")
    size = out.numel() if isinstance(out, torch.Tensor) else 0
    if is_op(node, aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm):
        first = node.args[1] if is_op(node, aten.addmm) else node.args[0]
        return 2.0 * size * first.meta["val"].shape[-1]
    if is_op(node, *CONVOLUTIONS):
        return 2.0 * size * math.prod(_shape(argument(node, "weight"))[1:])
    if is_op(node, *TRANSPOSED):
        return (
            2.0 * math.prod(_shape(node.args[0])) * math.prod(_shape(argument(node, "weight"))[1:])
        )
    reads = max((math.prod(_shape(arg)) for arg in node.all_input_nodes), default=0)
    return float(max(size, reads)) * (10.0 if is_op(node, *TRANSCENDENTAL) else 1.0)


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes(item) for item in value) if isinstance(value, (list, tuple)) else 0


def moved_bytes_of(graph: Graph, node: fx.Node) -> int:
    """Bytes of one value."""
    return _bytes(graph.val(node))
