"""Several spellings of one operation become the one that skills know, as soon as a program is
captured.

torch.inner(x, w) is F.linear(x, w), addmm of a transposed weight is it too, a pool whose indices
nobody reads is a pool, x.flatten(2).mean(-1) is a mean over the dimensions that were flattened,
and x.sum(1).view(-1, 1) keeps the dimension that it reduces. Each is the same operation on the
same tensors: shape, dtype and strides stay as they were, or the call stays as it is written. Not
covered: what would compute in another order, and einsum, which has skills of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
CanonicalCall: TypeAlias = tuple[Any, tuple[Any, ...]]
"""An operation and its arguments."""
POOLS = {
    aten.max_pool2d_with_indices: aten.max_pool2d,
    aten.max_pool3d_with_indices: aten.max_pool3d,
    aten.max_pool1d_with_indices: aten.max_pool1d,
}


def unify(graph: Graph) -> None:
    """Replaces calls by one canonical form of each, in place. A call keeps its name and its place
    in the person's code."""
    for node in graph.nodes:
        rule = next((rule for op, rule in RULES.items() if is_op(node, op)), None)
        if rule is not None and (call := rule(graph, node)) is not None:
            _spell(graph, node, *call)
    _drop_indices(graph)
    _part_moments(graph)


def _spell(graph: Graph, node: fx.Node, op: Any, args: tuple[Any, ...]) -> None:
    was, now = graph.val(node), graph.call(op, args, before=node)
    value = graph.val(now)
    graph.fx.erase_node(now)
    if value.shape == was.shape and value.dtype == was.dtype and value.stride() == was.stride():
        read = [item for item in node.all_input_nodes if item.op == "call_function"]
        node.target, node.args, node.kwargs = op, args, {}
        for item in read:  # the transpose of a weight, a flattened tensor: read by nobody else
            if not item.users and is_op(item, *TRANSPOSES, *VIEWS):
                graph.fx.erase_node(item)


def _drop_indices(graph: Graph) -> None:
    """A pool that returns its indices too, of which the values alone are read."""
    for node in graph.nodes:
        op = next((plain for op, plain in POOLS.items() if is_op(node, op)), None)
        users = graph.users(node)
        if op is None or graph.is_output(node) or [_part(user) for user in users] != [0]:
            continue
        node.target, node.meta["val"] = op.default, graph.val(users[0])
        users[0].replace_all_uses_with(node)
        graph.fx.erase_node(users[0])


def _part_moments(graph: Graph) -> None:
    """var_mean and std_mean that standardize their own input are two reductions, which fuse with
    the rest."""
    for node in graph.nodes:
        op = next((plain for op, plain in MOMENTS.items() if is_op(node, op)), None)
        users = graph.users(node)
        if op is None or graph.is_output(node) or sorted(map(_part, users), key=str) != [0, 1]:
            continue
        spread, mean = sorted(users, key=lambda user: int(user.args[1]))
        if argument(node, "dim") is None or not any(is_op(user, aten.sub) for user in mean.users):
            continue
        x, dim, keepdim = (
            node.args[0],
            argument(node, "dim"),
            bool(argument(node, "keepdim", False)),
        )
        correction = argument(node, "correction", None)
        if correction is None:
            correction = int(argument(node, "unbiased", True))
        kwargs = {"correction": correction, "keepdim": keepdim}
        mean.target, mean.args, mean.kwargs = aten.mean.dim, (x, dim, keepdim), {}
        spread.target, spread.args, spread.kwargs = op.correction, (x, dim), kwargs
        graph.fx.erase_node(node)


MOMENTS = {aten.var_mean: aten.var, aten.std_mean: aten.std}


def _part(user: fx.Node) -> Any:
    return user.args[1] if user.target is operator.getitem else None


# --- products ----------------------------------------------------------------------------


def _rank(node: Any) -> int:
    return int(node.meta["val"].dim())


def _inner(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    left, right = node.args[:2]
    return (aten.linear.default, (left, right)) if _rank(left) > 0 and _rank(right) == 2 else None


def _tensordot(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    """Over the last dimension of the first factor and one of a matrix, or of a vector."""
    left, right = node.args[:2]
    mine, other = (list(argument(node, name)) for name in ("dims_self", "dims_other"))
    if len(mine) != 1 or mine[0] % _rank(left) != _rank(left) - 1 or _rank(right) > 2:
        return None
    if other[0] % _rank(right) == 0:
        return aten.matmul.default, (left, right)
    return aten.linear.default, (left, right)


def _mv(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    return aten.matmul.default, tuple(node.args)


def _addmm(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    """A bias, a matrix and a transposed weight are a linear layer."""
    bias, left, right = node.args[:3]
    weight = _find_untransposed(right)
    plain = argument(node, "alpha", 1) == argument(node, "beta", 1) == 1
    fits = weight is not None and tuple(graph.val(bias).shape) == (graph.val(right).shape[1],)
    return (aten.linear.default, (left, weight, bias)) if plain and fits else None


TRANSPOSES = (aten.t, aten.numpy_T, aten.mT, aten.transpose, aten.permute)


def _find_untransposed(node: Any) -> fx.Node | None:
    """The matrix whose transpose the node is."""
    if not is_op(node, *TRANSPOSES) or _rank(node) != 2:
        return None
    base: fx.Node = node.args[0]
    swapped = base.meta["val"].stride() == node.meta["val"].stride()[::-1]
    return base if swapped and base.meta["val"].shape == node.meta["val"].shape[::-1] else None


# --- diagonals ---------------------------------------------------------------------------


def _linalg_diagonal(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    dims = tuple(argument(node, name, default) for name, default in DIAGONAL)
    return aten.diagonal.default, (node.args[0], *dims)


DIAGONAL = (("offset", 0), ("dim1", -2), ("dim2", -1))


def _diagflat(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    if _rank(node.args[0]) != 1:
        return None
    return aten.diag.default, (node.args[0], argument(node, "offset", 0))


# --- reductions --------------------------------------------------------------------------

VIEWS = (aten.flatten, aten.view, aten.reshape)


def _find_unflattened(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    """The same numbers, reduced where they were before they were put into a row. Strides that a
    view would refuse are reduced too."""
    dims, view = argument(node, "dim"), node.args[0]
    if dims is None or dims == [] or argument(node, "keepdim", False) or not is_op(view, *VIEWS):
        return None
    base = view.args[0]
    runs = _runs(tuple(graph.val(base).shape), tuple(graph.val(view).shape))
    if runs is None:
        return None
    given = [dims] if isinstance(dims, int) else dims
    found = [axis for dim in given for axis in runs[int(dim) % len(runs)]]
    at = next(i for i, item in enumerate(node.target._schema.arguments) if item.name == "dim")
    return node.target, (base, *node.args[1:at], found, *node.args[at + 1 :])


def _norm(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    """Of vectors: along one dimension, of one vector, or of all elements together."""
    x, order, dims = node.args[0], argument(node, "ord", None), argument(node, "dim", None)
    one = len(dims) == 1 if dims is not None else order is None or _rank(x) == 1
    if not one or isinstance(order, str) or argument(node, "dtype", None) is not None:
        return None
    keepdim = bool(argument(node, "keepdim", False))
    return aten.linalg_vector_norm.default, (x, 2 if order is None else order, dims, keepdim)


def _find_restored(graph: Graph, node: fx.Node) -> CanonicalCall | None:
    """The dimension that a reduction took away comes back, with one element."""
    base = node.args[0]
    before, after = tuple(graph.val(base).shape), tuple(graph.val(node).shape)
    dim = _reduced_dim(base)
    fits = dim is not None and dim <= len(before) and after == (*before[:dim], 1, *before[dim:])
    return (aten.unsqueeze.default, (base, dim)) if fits else None


def _reduced_dim(node: Any) -> int | None:
    """The only dimension of a reduction that lies behind the node, with operations on elements
    between."""
    for _ in range(MAX_BETWEEN):
        if not isinstance(node, fx.Node) or node.op != "call_function" or not node.all_input_nodes:
            return None
        if node.target is operator.getitem and node.args[1] == 0:
            node = node.args[0]
        if is_op(node, *REDUCTIONS, aten.max, aten.min):
            dims = argument(node, "dim", None)
            dims = [dims] if isinstance(dims, int) else dims or []
            kept = len(dims) != 1 or bool(argument(node, "keepdim", False))
            return None if kept else int(dims[0]) % _rank(node.args[0])
        node = node.all_input_nodes[0]
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return None
    return None


MAX_BETWEEN = 5
"""Steps from a reduction to the view that restores its dimension: an epsilon, a root, a
reciprocal."""


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> list[list[int]] | None:
    """For each dimension afterwards those that it was made of; None when one was split, or is
    empty."""
    found, axes = list[list[int]](), list(range(len(before)))
    for size in after:
        run, product = list[int](), 1
        while axes and (product < size or not run):
            run.append(axes.pop(0))
            product *= before[run[-1]]
        if product != size:
            return None
        found.append(run)
    return found if not axes and 0 not in before else None


REDUCTIONS = (aten.sum, aten.mean, aten.amax, aten.amin, aten.logsumexp, aten.linalg_vector_norm,
              aten.norm,
              aten.var, aten.std)  # fmt: skip

RULES: dict[Any, Callable[[Graph, fx.Node], CanonicalCall | None]] = {
    aten.inner: _inner,
    aten.tensordot: _tensordot,
    aten.mv: _mv,
    aten.addmm: _addmm,
    aten.linalg_diagonal: _linalg_diagonal,
    aten.diagflat: _diagflat,
    aten.linalg_norm: _norm,
    aten.view: _find_restored,
    aten.reshape: _find_restored,
    **dict.fromkeys(REDUCTIONS, _find_unflattened),
}
