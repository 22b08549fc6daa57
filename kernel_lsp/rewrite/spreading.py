"""Operations of a loop's step that depend on no state, done once for all steps.

`spreads(graph, node, every, changing, dim) -> bool`, `spread(graph, node, every, dim, before) -> node`. A
value of every step lies in one tensor along ``dim``, in the order of the steps; an operation is covered when
it does the same to each slice of that tensor: element by element, or over dimensions behind ``dim``.
Not covered: what is random, whole-tensor reductions, views, operands of fewer dimensions than the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.pointwise import TABLE, op_name
from kernel_lsp.rewrite.graph import Graph, argument, is_op, is_random

aten = torch.ops.aten
CHANNELS = ("prelu", "broadcast_part")
"""They look for channels in dimension 1, or are parts of another call."""
ROWS = (aten.linear, aten.matmul, aten.mm)
ALONG = (aten.softmax, aten.log_softmax, aten.cat)


def spreads(
    graph: Graph, node: fx.Node, every: Collection[fx.Node], changing: Collection[fx.Node], dim: int
) -> bool:
    """``every`` are values of a step that are known for all steps, ``changing`` all that differ in steps."""
    given = [item for item in node.all_input_nodes if item in changing]
    if not given or not set(given) <= set(every) or is_random(node):
        return False
    if not isinstance(graph.val(node), torch.Tensor):
        return False
    if is_op(node, *ROWS):
        fixed = graph.val(node.args[1]).dim() == 2
        return given == [node.args[0]] and fixed and graph.val(given[0]).dim() > max(dim, 0)
    if is_op(node, aten.embedding):
        own_order = argument(node, "scale_grad_by_freq", False)  # counts the indices of one call
        return given == [node.args[1]] and not own_order
    if is_op(node, aten.layer_norm):
        return given == [node.args[0]] and graph.val(node).dim() - len(node.args[1]) >= dim
    if is_op(node, *ALONG):
        return len(given) == len(node.all_input_nodes) and _along(graph, node) >= dim
    return _is_pointwise(graph, node, given, dim)


def spread(
    graph: Graph, node: fx.Node, every: Mapping[fx.Node, fx.Node], dim: int, before: fx.Node
) -> fx.Node:
    """The operation on the tensors of all steps. Raises RewriteError when it would yield something else."""
    args = list(fx.map_arg(tuple(node.args), lambda item: every.get(item, item)))
    kwargs = dict(fx.map_arg(dict(node.kwargs), lambda item: every.get(item, item)))
    target = aten.matmul.default if is_op(node, aten.mm) else node.target
    if is_op(node, *ALONG):
        kwargs.pop("dim", None)
        args[1:2] = [_along(graph, node) + 1]
    made = graph.call(target, args, kwargs, before=before, name=graph.variable(node))
    was, now = graph.val(node), graph.val(made)
    if (now.dtype, list(now.shape[:dim] + now.shape[dim + 1 :])) != (was.dtype, list(was.shape)):
        raise RewriteError(f"{node.name} is something else for all steps at once", "keep the loop as it is")
    return made


def _along(graph: Graph, node: fx.Node) -> int:
    """The dimension over which a call normalizes or concatenates."""
    return int(argument(node, "dim", 0)) % graph.val(node).dim()


def _is_pointwise(graph: Graph, node: fx.Node, given: Collection[fx.Node], dim: int) -> bool:
    """Broadcasts stay as they were: dimensions are counted from the last one."""
    rank = graph.val(node).dim()
    if op_name(node) not in TABLE or op_name(node) in CHANNELS or rank < max(dim, 1):
        return False
    others = [item for item in node.all_input_nodes if item not in given]
    alike = all(graph.val(item).dim() == rank for item in given)
    return alike and all(graph.val(item).dim() <= rank - dim for item in others)
