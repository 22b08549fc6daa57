"""About how long one call of a whole target takes: the host's part beside the device's, the longer
of them.

Ranks what is planned (which plan first, whether a recording pays); what is offered has been
measured. Rates are one H200's. Host times are three quarters of what 5,091 plans of 387 programs
took on its busy host (2026-11-21, least squares over the calls that the host decides), and half as
much again as on an idle one: what matters is how they compare. Not covered: the CPU, where host
and device are one."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

import torch
from torch import fx

from kernel_lsp.devices import REFERENCE
from kernel_lsp.records import CallCost
from kernel_lsp.rewrite.codegen.convolution.cost import eager_conv_seconds
from kernel_lsp.rewrite.codegen.convolution.facts import conv_of
from kernel_lsp.rewrite.codegen.regions import cost as eager
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
RECURRENT = (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)
PRODUCTS = (aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.einsum)
CONVOLUTIONS = (*cost.CONVOLUTIONS, *cost.TRANSPOSED)
SEVERAL = (
    aten.layer_norm, aten.group_norm, aten.batch_norm, aten.instance_norm, aten.rms_norm,
    aten.softmax,
    aten.log_softmax, aten.logsumexp, aten.var, aten.std, aten.embedding, aten.cat, aten.pad,
    aten.dropout,
    aten.max_pool1d, aten.max_pool2d, aten.max_pool3d, aten.avg_pool1d, aten.avg_pool2d,
    aten.avg_pool3d,
    aten.scaled_dot_product_attention, aten.cross_entropy_loss, aten.smooth_l1_loss,
)  # fmt: skip
"""Operations that check more, allocate more, or run as several."""
INTO = re.compile(r"\btorch\.\w+\([^\n]*\bout=")
SHORTEST_KERNEL_S = 2e-6
STEP_OF_LIBRARY_S, STEP_HOST_S = 5e-6, 11e-6
"""cuDNN's recurrent layers, for each time step and layer: on the device (assumed), and a whole
call (H200: 128 steps of a GRU in 1.42 ms, of two layers of LSTM in 2.84), which is taken to be the
host's time: a recording that is not faster is not offered."""
OPERATION_HOST_S, SEVERAL_HOST_S, PRODUCT_HOST_S, CONVOLUTION_HOST_S = 15e-6, 22e-6, 30e-6, 60e-6
"""What the host needs for an operation of torch, by what stands behind it: one kernel, a few,
cuBLAS, cuDNN. Eight linear layers with their ReLUs, 360 us by this, took 208 us in eager on an
idle host."""
VIEW_HOST_S, KERNEL_HOST_S, DESCRIPTOR_HOST_S = 1e-6, 45e-6, 6e-6
"""For a view, a Triton kernel with what its launcher asks and allocates and its share of the guard
(on an idle host the launch alone takes 16 to 18 us), and a tensor descriptor."""
REPLAY_HOST_S, COPY_HOST_S, PART_HOST_S = 38e-6, 12e-6, 2.5e-6
"""For a replay, for each tensor that is copied in or out, and to look at one layer or one
weight."""
PRODUCT_FLOPS, ATTENTION_FLOPS = {4: 50e12, 2: 650e12}, {4: 50e12, 2: 400e12}
"""cuBLAS and torch's attention, by bytes of an element."""
GENERATED_FLOPS = {4: 160e12, 2: 450e12}
"""Generated products: in float32 three products of 16-bit parts (codegen/matmul/cost.py)."""


def call_cost(graph: Graph) -> CallCost | None:
    """What one call of the graph takes, on the host and on the device, for whoever plans; None for
    a graph that is not on a CUDA device."""
    if graph.device != "cuda":
        return None
    return CallCost(
        host_s=sum(_host(node) for node in graph.nodes),
        device_s=_device_seconds(graph),
        replayed_s=replay_seconds(graph),
        launches=launches(graph),
    )


WorkByKind: TypeAlias = dict[str, tuple[float, float]]
"""Name of a call -> (floating point operations, seconds)."""


def seconds(graph: Graph) -> float:
    """One call as the graph stands, without what is wrapped around it."""
    return max(sum(_host(node) for node in graph.nodes), _device_seconds(graph))


def replay_seconds(graph: Graph) -> float:
    """One call that replays the graph's kernels from a recording, with copies of inputs and
    results."""
    inputs = [item.node for item in graph.inputs if item.node is not None]
    tensors = [*inputs, *(leaf for leaf in graph.outputs if isinstance(leaf, fx.Node))]
    moved = sum(2 * cost.moved_bytes_of(graph, node) for node in tensors)
    copies = moved / cost.gpu_rates(graph).bytes_per_s + SHORTEST_KERNEL_S * len(tensors)
    parts = (
        len(graph.state) + sum(1 for _ in graph.origin.module.modules())
        if graph.origin.module
        else 0
    )
    host = REPLAY_HOST_S + COPY_HOST_S * len(tensors) + PART_HOST_S * parts
    return max(_device_seconds(graph) + copies, host)


def launches(graph: Graph) -> int:
    """Kernels of one call."""
    return sum(_count_launches(node) for node in graph.nodes if not is_view(node))


def work(graph: Graph) -> WorkByKind:
    """What each call does, to be handed over when a rewrite replaces it."""
    return {node.name: (_flops(node), _expected_seconds(graph, node)) for node in graph.nodes}


def hand_over(before: WorkByKind, after: Graph, benefit: float) -> None:
    """Tell the launches that a rewrite brought what they have to do: their source does not say it.

    They compute what the rewrite took away, in the time that it took less the share of the whole
    that the skill expects to save; where it computes less than that, by algebra, the second is far
    below the first."""
    stays = {node.name for node in after.nodes}
    new = [node for node in after.nodes if "generated" in node.meta and node.name not in before]
    gone = [tensor_record for name, tensor_record in before.items() if name not in stays]
    left = sum(s for _, s in gone) - benefit * sum(s for _, s in before.values())
    for node in new:
        node.meta["flops"] = sum(flops for flops, _ in gone) / len(new)
        node.meta["expected"] = max(0.0, left) / len(new)


def arithmetic(node: fx.Node) -> tuple[float, float]:
    """Floating point operations of one operation, and how many of them the device's library does a
    second."""
    return _flops(node), _rate(node)


def _host(node: fx.Node) -> float:
    if (kernel := node.meta.get("generated")) is not None:
        own = _count_launches(node) * (KERNEL_HOST_S if kernel.is_triton else 2 * OPERATION_HOST_S)
        return own + DESCRIPTOR_HOST_S * kernel.definitions.count(".from_tensor(")
    if is_op(node, *RECURRENT):
        return _steps(node) * STEP_HOST_S
    if is_view(node):
        return VIEW_HOST_S
    kinds = (
        (PRODUCTS, PRODUCT_HOST_S),
        (CONVOLUTIONS, CONVOLUTION_HOST_S),
        (SEVERAL, SEVERAL_HOST_S),
    )
    return next((time for ops, time in kinds if is_op(node, *ops)), OPERATION_HOST_S)


def _device_seconds(graph: Graph) -> float:
    return sum(alone(graph, node) for node in graph.nodes if not is_view(node))


def alone(graph: Graph, node: fx.Node) -> float:
    """Device seconds of one operation."""
    if is_op(node, *RECURRENT):
        return _steps(node) * STEP_OF_LIBRARY_S
    if (found := conv_of(node)) is not None:
        return max(eager_conv_seconds(found), SHORTEST_KERNEL_S)
    moving = cost.moved_bytes(node) / cost.gpu_rates(graph).bytes_per_s
    working = _flops(node) / _rate(node)
    if "generated" in node.meta:
        working = min(working, node.meta.get("expected", working))
    # Passes and kernels.
    more = max(0.0, eager.eager_seconds(graph, node) - cost.seconds(graph, node))
    return max(moving, working, SHORTEST_KERNEL_S * _count_launches(node)) + more


def _expected_seconds(graph: Graph, node: fx.Node) -> float:
    if is_view(node):
        return 0.0
    own = "generated" in node.meta or is_op(node, *CONVOLUTIONS)
    return alone(graph, node) if own else eager.eager_seconds(graph, node)


def _rate(node: fx.Node) -> float:
    value = node.meta.get("val")
    first = next((v for v in (value if isinstance(value, (list, tuple)) else [value])), None)
    size = 2 if isinstance(first, torch.Tensor) and first.element_size() <= 2 else 4
    if "generated" in node.meta:
        return GENERATED_FLOPS[size]
    if is_op(node, aten.scaled_dot_product_attention):
        return ATTENTION_FLOPS[size]
    return PRODUCT_FLOPS[size] if is_op(node, *PRODUCTS) else REFERENCE.flops_per_s


def _flops(node: fx.Node) -> float:
    if "generated" in node.meta:
        return float(node.meta.get("flops", 0.0))
    if is_op(node, aten.scaled_dot_product_attention):  # the scores, and what they weigh
        query, key = (arg.meta["val"].shape for arg in node.args[:2])
        return 4.0 * math.prod(query) * key[-2]
    return cost.flops(node)


def _count_launches(node: fx.Node) -> int:
    """Kernels of one operation: of a generated one what its generator counted, or the launches
    that can be seen in the source, and the library's that put their results together."""
    kernel: GeneratedSource | None = node.meta.get("generated")
    if kernel is None:
        return 1
    seen = kernel.definitions.count("_kernel[") + len(INTO.findall(kernel.definitions))
    return max(kernel.launches, seen)


def _steps(node: fx.Node) -> int:
    """Time steps of a library's recurrent layers, each of which is a few kernels."""
    layers = int(argument(node, "num_layers", 1)) * (
        1 + bool(argument(node, "bidirectional", False))
    )
    steps: int = max(node.args[0].meta["val"].shape[:2])
    return steps * layers


def is_view(node: fx.Node) -> bool:
    """Whether the call runs no kernel."""
    if "generated" in node.meta:
        return False
    return is_op(node, *cost.VIEWS, aten.unbind, aten.split, aten.chunk) or not hasattr(
        node.target, "_schema"
    )
