"""Operations of a loop's step that depend on no state, done once for all steps.

`spreads(graph, node, every, changing, dim) -> bool`, `spread(graph, node, every, dim, before) ->
node`. A value of every step lies in one tensor along ``dim``, in the order of the steps; an
operation is covered when it does the same to each slice of that tensor: element by element, or
over dimensions behind ``dim``. Not covered: what is random, whole-tensor reductions, views,
operands of fewer dimensions than the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE
from kernel_lsp.rewrite.graph import Graph, argument, is_op, is_random
from kernel_lsp.rewrite.loops.walks import SliceWalk

aten = torch.ops.aten
CHANNELS = ("prelu", "broadcast_part")
"""They look for channels in dimension 1, or are parts of another call."""
ROWS = (aten.linear, aten.matmul, aten.mm)
ALONG = (aten.softmax, aten.log_softmax, aten.cat)
MOVED = (aten.unsqueeze, aten.squeeze, aten.sum, aten.mean)
"""They name dimensions, of which those behind the steps are one further on."""


def spreads(
    graph: Graph, node: fx.Node, every: Collection[fx.Node], changing: Collection[fx.Node], dim: int
) -> bool:
    """``every`` are values of a step that are known for all steps, ``changing`` all that differ in
    steps."""
    given = [item for item in node.all_input_nodes if item in changing]
    if not given or not set(given) <= set(every) or is_random(node):
        return False
    if not isinstance(graph.val(node), torch.Tensor):
        return False
    if is_op(node, aten.matmul, *ROWS):
        return _multiplies_rows(graph, node, given, dim)
    if is_op(node, aten.embedding, aten.layer_norm):
        return _looks_up_or_normalizes(graph, node, given, dim)
    if is_op(node, *ALONG):
        return len(given) == len(node.all_input_nodes) and _along(graph, node) >= dim
    if is_op(node, *MOVED):
        return len(node.args) > 1 and all(axis >= dim for axis in _axes(graph, node))
    if is_op(node, aten.einsum):
        return _equation(node, given, dim) is not None
    return _is_pointwise(graph, node, given, dim)


def _multiplies_rows(graph: Graph, node: fx.Node, given: list[fx.Node], dim: int) -> bool:
    if is_op(node, aten.matmul) and len(given) == 2:
        ranks = {graph.val(item).dim() for item in (*given, node)}
        return len(ranks) == 1 and min(ranks) >= dim + 2
    fixed = graph.val(node.args[1]).dim() == 2
    return given == [node.args[0]] and fixed and graph.val(given[0]).dim() > max(dim, 0)


def _looks_up_or_normalizes(graph: Graph, node: fx.Node, given: list[fx.Node], dim: int) -> bool:
    if is_op(node, aten.embedding):
        own_order = argument(node, "scale_grad_by_freq", False)  # counts the indices of one call
        return given == [node.args[1]] and not own_order
    return given == [node.args[0]] and graph.val(node).dim() - len(node.args[1]) >= dim


def spread(
    graph: Graph, node: fx.Node, every: Mapping[fx.Node, fx.Node], dim: int, before: fx.Node
) -> fx.Node:
    """The operation on the tensors of all steps. Raises RewriteError when it would yield something
    else."""
    args = list(fx.map_arg(tuple(node.args), lambda item: every.get(item, item)))
    kwargs = dict(fx.map_arg(dict(node.kwargs), lambda item: every.get(item, item)))
    target = aten.matmul.default if is_op(node, aten.mm) else node.target
    if is_op(node, *ALONG):
        kwargs.pop("dim", None)
        args[1:2] = [_along(graph, node) + 1]
    elif is_op(node, *MOVED):
        axes = [axis + 1 for axis in _axes(graph, node)]
        args[1] = axes if isinstance(node.args[1], (list, tuple)) else axes[0]
    elif is_op(node, aten.einsum):
        args[0] = _equation(node, [item for item in node.all_input_nodes if item in every], dim)
    made = graph.call(target, args, kwargs, before=before, name=graph.variable(node))
    was, now = graph.val(node), graph.val(made)
    if (now.dtype, list(now.shape[:dim] + now.shape[dim + 1 :])) != (was.dtype, list(was.shape)):
        raise RewriteError(
            f"{node.name} is something else for all steps at once", "keep the loop as it is"
        )
    return made


def stack_walk(graph: Graph, walk: SliceWalk, dim: int, before: fx.Node) -> fx.Node:
    """What the loop reads, in the order of the steps along ``dim``."""
    node = walk.base
    if not walk.is_whole:
        ends = min(walk.indices), max(walk.indices) + 1
        node = graph.call(aten.slice.Tensor, (node, walk.dim, *ends), before=before)
    if walk.is_backward:
        node = graph.call(aten.flip.default, (node, [walk.dim]), before=before)
    if walk.dim != dim:
        node = graph.call(aten.movedim.int, (node, walk.dim, dim), before=before)
    return node


def last_of(graph: Graph, every: fx.Node, dim: int, before: fx.Node) -> fx.Node:
    """The last step's part of a tensor of all steps."""
    part = graph.call(aten.select.int, (every, dim, graph.val(every).shape[dim] - 1), before=before)
    return graph.call(aten.clone.default, (part,), before=before)  # no memory of the other steps


def _along(graph: Graph, node: fx.Node) -> int:
    """The dimension over which a call normalizes or concatenates."""
    return int(argument(node, "dim", 0)) % graph.val(node).dim()


def _axes(graph: Graph, node: fx.Node) -> list[int]:
    """The dimensions that a call names, counted from the first one; -1 where it names none."""
    given, rank = node.args[1], graph.val(node.args[0]).dim() + is_op(node, aten.unsqueeze)
    axes = list(given) if isinstance(given, (list, tuple)) else [given]
    return [int(axis) % rank for axis in axes] if axes and None not in axes else [-1]


def _equation(node: fx.Node, given: Collection[fx.Node], dim: int) -> str | None:
    """The subscripts with a letter for the steps; None without explicit letters for every
    dimension."""
    terms, arrow, result = str(node.args[0]).replace(" ", "").partition("->")
    letter = next(letter for letter in "tTzZ_" if letter not in terms)
    parts = [
        f"{term[:dim]}{letter}{term[dim:]}" if item in given else term
        for term, item in zip(terms.split(","), node.args[1], strict=True)
    ]
    short = any(len(term) < dim for term in (*terms.split(","), result))
    if not arrow or letter == "_" or "." in terms or short:
        return None
    return f"{','.join(parts)}->{result[:dim]}{letter}{result[dim:]}"


def _is_pointwise(graph: Graph, node: fx.Node, given: Collection[fx.Node], dim: int) -> bool:
    """Broadcasts stay as they were: dimensions are counted from the last one."""
    rank = graph.val(node).dim()
    if op_name(node) not in TABLE or op_name(node) in CHANNELS or rank < max(dim, 1):
        return False
    others = [item for item in node.all_input_nodes if item not in given]
    alike = all(graph.val(item).dim() == rank for item in given)
    return alike and all(graph.val(item).dim() <= rank - dim for item in others)
