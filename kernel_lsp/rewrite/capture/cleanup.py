"""Bring a captured graph to the form skills expect: no in-place ops, no tracer artifacts.

An in-place op on a fresh tensor nobody has a view of equals its ordinary twin; every later reader
gets the new value; a fresh tensor that is filled slice by slice is a stack (filling.py). Writes
into arguments and buffers stay as they are (writes.py). Anything else is refused. The counter of
batch norm (``num_batches_tracked.add_``) stays too: it is an effect."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import CaptureError
from kernel_lsp.rewrite.capture.filling import settle, unfill
from kernel_lsp.rewrite.capture.writes import keep_write
from kernel_lsp.rewrite.graph import Graph, is_op

aten = torch.ops.aten
IDENTITY = (aten.lift_fresh_copy, aten.lift_fresh, aten.detach_)
TWINS = {aten.bernoulli_.float: aten.bernoulli.p}
"""In-place ops whose ordinary twin has another name: stochastic depth draws its mask so."""


def clean(graph: Graph, *, may_write: bool) -> None:
    """Replaces changes in place by their ordinary twins, in place. ``may_write``: those of
    arguments and buffers stay. Raises CaptureError on a change that has no ordinary twin."""
    copies = unfill(graph)
    for node in graph.nodes:
        if is_op(node, aten._assert_tensor_metadata):
            graph.fx.erase_node(node)
        elif _does_nothing(graph, node):
            node.replace_all_uses_with(node.args[0])
            graph.fx.erase_node(node)
        elif _is_mutable(node) and not _is_counter(graph, node):
            if not (may_write and keep_write(graph, node)):
                _make_ordinary(graph, node)
        elif node.target is operator.getitem and not node.users:
            graph.fx.erase_node(node)  # the tracer unpacks every result, used or not
    settle(graph, copies)


def _does_nothing(graph: Graph, node: fx.Node) -> bool:
    """How torch makes a tensor of literals or of an array: it is lifted, moved to where it is and
    detached from a history that it does not have."""
    base = node.args[0] if node.args else None
    if not isinstance(base, fx.Node):
        return False
    if is_op(node, *IDENTITY) and (base in graph.constants or base in graph.state):
        return True
    if is_op(node, aten.to) and base in graph.constants:
        return bool(node.meta["val"].dtype == base.meta["val"].dtype)
    return is_op(node, aten.detach_) and is_op(base, aten.to) and base.args[0] in graph.constants


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_counter(graph: Graph, node: fx.Node) -> bool:
    path = graph.state.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    if path is None or not path.endswith("num_batches_tracked"):
        return False
    node.replace_all_uses_with(node.args[0])  # a second call of the layer counts on the same buffer
    return True


def _make_ordinary(graph: Graph, node: fx.Node) -> None:
    base, twin = node.args[0], _twin(node)
    if (
        twin is None
        or not isinstance(base, fx.Node)
        or base.op != "call_function"
        or _shares_memory(base)
    ):
        where = (node.meta.get("stack_trace") or "").strip().split("\n")[-1].strip()
        raise CaptureError(
            f"`{where or node.name}` changes a tensor in place that others can see",
            "write it as a new tensor, e.g. torch.where or torch.cat",
        )
    same = node.meta["val"].dtype == base.meta["val"].dtype
    assert same, "an in-place op keeps its tensor's dtype"
    before = {n for n in base.users if n is node or _comes_before(graph, n, node)}
    node.target = twin
    base.replace_all_uses_with(node, delete_user_cb=lambda user: user not in before)


def _twin(node: fx.Node) -> Any:
    schema, target = node.target._schema, node.target
    name = schema.name.split("::")[1]
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    overload = TWINS.get(target)
    if overload is None and packet is not None:
        overload = getattr(packet, target._overloadname, None)
    if (
        overload is None
        or [a.name for a in overload._schema.arguments][: len(node.args)]
        != [a.name for a in schema.arguments][: len(node.args)]
    ):
        return None
    mutated = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return overload if len(mutated) == 1 and _keeps_shape(node, overload) else None


def _keeps_shape(node: fx.Node, overload: Any) -> bool:
    """False when the ordinary op would promote the dtype or broadcast the tensor."""
    values = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    base = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
    if not isinstance(base, torch.Tensor):
        return False
    with base.fake_mode, torch.no_grad():
        made = overload(*values[0], **values[1])
    return bool(made.dtype == base.dtype and made.shape == base.shape)


def _shares_memory(node: fx.Node) -> bool:
    """True when the node is a view of something, or something is a view of it."""
    return _is_view(node) or any(_is_view(user) for user in node.users if not _is_mutable(user))


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _comes_before(graph: Graph, first: fx.Node, second: fx.Node) -> bool:
    for node in graph.fx.nodes:
        if node is first:
            return True
        if node is second:
            return False
    return False
