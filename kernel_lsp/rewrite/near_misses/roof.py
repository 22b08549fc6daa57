"""What operations take beside what a device allows: bytes, arithmetic, launches.

Estimates, by the rates of the device that cost/operations.py and call_time.py have: they say
why a skill stays silent, and nothing that is offered rests on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernel_lsp.records import Roof, RoofKind
from kernel_lsp.rewrite import call_time
from kernel_lsp.rewrite.codegen.convolution.cost import TENSOR_FLOPS
from kernel_lsp.rewrite.codegen.convolution.facts import conv_of
from kernel_lsp.rewrite.codegen.core.strides import is_copy
from kernel_lsp.rewrite.codegen.regions import cost as eager
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.graph import DROPOUTS, Graph, drops, is_op

aten = torch.ops.aten
AT_THE_ROOF, MOSTLY = 0.75, 0.5
"""Share of the time from which bytes or arithmetic are said to be all of it, and launches to be
most of it. A fused kernel is offered when it saves 0.1 of what it covers (fuse.MIN_SAVING)."""
MULTIPLIED = (*call_time.PRODUCTS, *call_time.CONVOLUTIONS, aten.scaled_dot_product_attention)
"""Whose arithmetic counts: that of others is hidden behind their bytes."""
LOOKUPS = (
    aten.embedding,
    aten.gather,
    aten.index_select,
    aten.index,
    aten.take,
    aten.embedding_bag,
)


def is_work(node: fx.Node) -> bool:
    """Whether the call runs a kernel: no view, no part of a result, no dropout that drops
    nothing."""
    if call_time.is_view(node) or "generated" in node.meta:
        return False
    return not is_identity(node) or is_copy(node) or _drops(node)


def seconds(graph: Graph, node: fx.Node) -> float:
    """One operation, as it stands."""
    if not is_work(node):
        return 0.0
    if graph.device == "cuda":
        return call_time.alone(graph, node)
    return cost.seconds(graph, node) if _drops(node) else eager.eager_seconds(graph, node)


def of_nodes(graph: Graph, nodes: Sequence[fx.Node]) -> Roof:
    """The roof of some operations: what enters them and what leaves them has to be moved."""
    inside = set(nodes)
    moved = _read(nodes) + sum(_bytes(node) for node in nodes if _leaves(graph, node, inside))
    work = [node for node in nodes if is_work(node)]
    rates = cost.rates(graph)
    taken = sum(seconds(graph, node) for node in work)
    products = [node for node in work if is_op(node, *MULTIPLIED)]
    least = {
        RoofKind.MEMORY: moved / rates.bytes_per_s,
        RoofKind.ARITHMETIC: sum(_arithmetic(graph, node) for node in products),
        RoofKind.LAUNCH: len(work) * _shortest(graph),
    }
    kind = _kind(least, taken)
    return Roof(
        kind=kind,
        taken_s=taken,
        least_s=least.get(kind, least[RoofKind.MEMORY]),
        bytes=moved,
        flops=sum(call_time.arithmetic(node)[0] for node in products),
        bytes_per_s=rates.bytes_per_s,
        device=graph.hardware.title,
    )


def of_target(graph: Graph) -> Roof | None:
    """The roof of the whole call; None where it runs nothing."""
    nodes = [node for node in graph.nodes if is_work(node)]
    return of_nodes(graph, nodes) if nodes else None


def _read(nodes: Sequence[fx.Node]) -> int:
    """Bytes that enter: of a tensor that is read in parts no more than these, of a table its
    lines."""
    inside, parts = set(nodes), dict[fx.Node, dict[fx.Node, int]]()
    for node in nodes:
        for arg in node.all_input_nodes:
            base = _base(arg)
            if base not in inside and base.op != "get_attr":
                size = min(_bytes(arg), _bytes(node)) if is_op(node, *LOOKUPS) else _bytes(arg)
                parts.setdefault(base, {})[arg] = size
    return sum(min(_bytes(base), sum(sizes.values())) for base, sizes in parts.items())


def _base(node: fx.Node) -> fx.Node:
    """The tensor that a node is a view of, or merely hands on."""
    while node.op == "call_function" and not is_work(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _leaves(graph: Graph, node: fx.Node, inside: set[fx.Node]) -> bool:
    """Its value, or a view of it, is read outside."""
    if graph.is_output(node):
        return True
    return any(
        user not in inside if is_work(user) else _leaves(graph, user, inside)
        for user in graph.users(node)
    )


def _kind(least: dict[RoofKind, float], taken: float) -> RoofKind:
    if least[RoofKind.LAUNCH] >= MOSTLY * taken:
        return RoofKind.LAUNCH
    for kind in (RoofKind.MEMORY, RoofKind.ARITHMETIC):
        if least[kind] >= AT_THE_ROOF * taken:
            return kind
    return RoofKind.NONE


def _drops(node: fx.Node) -> bool:
    """A dropout that draws: in eval mode it is no work, and so the generators take it for none."""
    return is_op(node, *DROPOUTS) and drops(node)


def _arithmetic(graph: Graph, node: fx.Node) -> float:
    flops, rate = call_time.arithmetic(node)
    if graph.device != "cuda":
        return flops / cost.rates(graph).flops_per_s
    found = conv_of(node)
    return flops / (rate if found is None else TENSOR_FLOPS[found.dtype])


def _shortest(graph: Graph) -> float:
    return call_time.SHORTEST_KERNEL_S if graph.device == "cuda" else cost.rates(graph).overhead_s


def _bytes(node: fx.Node) -> int:
    """Of what lies in memory: an expanded dimension is read again and again, but moved once."""
    return sum(map(_stored_bytes, _tensors(node.meta.get("val"))))


def _stored_bytes(value: torch.Tensor) -> int:
    sizes = (n for n, stride in zip(value.shape, value.stride(), strict=True) if stride != 0)
    return math.prod(sizes) * value.element_size()


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]
