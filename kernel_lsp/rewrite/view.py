"""A graph as `records.GraphView`: what leaves the engine about it, without values and without
source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from kernel_lsp.records import Form, GraphView, Layout, Operation, OperationRole
from kernel_lsp.rewrite.facts.tensors import unknown_fact
from kernel_lsp.rewrite.graph import Graph

KERNEL = "kernel"


def view_of(graph: Graph) -> GraphView:
    """Every operation that the graph still has, in its order."""
    nodes = [
        node for node in graph.fx.nodes if node.op in ("placeholder", "get_attr", "call_function")
    ]
    nodes = [node for node in nodes if node.users or node.op == "call_function"]
    places = {node: place for place, node in enumerate(nodes)}
    return GraphView(
        operations=tuple(_operation(graph, node, places) for node in nodes),
        training=graph.training,
        gradients=graph.gradients,
    )


def _operation(graph: Graph, node: fx.Node, places: dict[fx.Node, int]) -> Operation:
    leaves = list(_leaves((node.args, dict(node.kwargs)))) if node.op == "call_function" else []
    return Operation(
        name=node.name,
        role=_role(graph, node),
        op=_name(node) if node.op == "call_function" else "",
        reads=tuple(
            places[leaf] for leaf in leaves if isinstance(leaf, fx.Node) and leaf in places
        ),
        numbers=tuple(leaf for leaf in leaves if isinstance(leaf, (bool, int, float))),
        words=tuple(_word(leaf) for leaf in leaves if isinstance(leaf, (str, torch.dtype))),
        forms=tuple(_form(value) for value in _tensors(node.meta.get("val"))),
        output=graph.is_output(node),
        trained=node.op == "placeholder" and graph.trained(node),
    )


def _role(graph: Graph, node: fx.Node) -> OperationRole:
    if node.op == "call_function":
        return OperationRole.CALL
    if node in graph.state:
        return OperationRole.STATE
    return OperationRole.CONSTANT if node in graph.constants else OperationRole.INPUT


def _name(node: fx.Node) -> str:
    if "generated" in node.meta:
        return KERNEL
    schema = getattr(node.target, "_schema", None)
    return (
        str(schema.name).rpartition("::")[2]
        if schema
        else str(getattr(node.target, "__name__", "other"))
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield value


def _word(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor))


def _form(value: torch.Tensor) -> Form:
    return Form(
        dtype=_word(value.dtype),
        shape=tuple(int(size) for size in value.shape),
        layout=_layout(value),
    )


def _layout(value: torch.Tensor) -> Layout:
    if value.layout is not torch.strided:
        return Layout.STRIDED
    fact = unknown_fact(value)
    if fact.contiguous:
        return Layout.CONTIGUOUS
    if fact.channels_last:
        return Layout.CHANNELS_LAST
    sizes = [
        (stride, size) for size, stride in zip(fact.shape, fact.stride, strict=True) if size != 1
    ]
    if any(stride == 0 for stride, _ in sizes):
        return Layout.EXPANDED
    expected = 1
    for stride, size in sorted(sizes):
        if stride != expected:
            return Layout.STRIDED
        expected *= size
    return Layout.PERMUTED
