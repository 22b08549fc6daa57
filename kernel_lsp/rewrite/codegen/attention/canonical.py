"""Attention in the spellings of people becomes ``softmax(chain(q @ k^T)) @ v``, a dimension for
each role.

Covered: einsum, bmm over flattened heads, baddbmm, products that broadcast keys (grouped and
multi-query), views and permutations anywhere between the first product and the second, scores with
keys before queries, matrices without a batch. What is pointwise on the way is computed at the new
shape, its operands through views: a dimension is only divided, moved or broadcast, so no operand
is copied. Keys and values that a program has copied for the sake of a shape are read where they
were. Not covered: keys in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from kernel_lsp.rewrite.codegen.attention.axes import (
    REGROUPS,
    TURNS,
    Label,
    LabeledDim,
    LabeledDims,
    LabeledProduct,
    flat,
    order_of,
    size_of,
)
from kernel_lsp.rewrite.codegen.attention.roles import (
    CASTS,
    AttentionRoles,
    Spine,
    roles_of,
    spine_of,
)
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.graph import Graph, argument, aten

MAX_DIMENSIONS = 5


def canonicalize(graph: Graph, out: fx.Node) -> fx.Node | None:
    """The second product in the plain spelling, put into the graph in the place of ``out``; None,
    and a graph as it was, where the program says something else."""
    spine = spine_of(graph, out)
    roles = None if spine is None else roles_of(spine)
    if spine is None or roles is None:
        return None
    return _EagerAttentionWriter(graph, spine, roles).write()


class _EagerAttentionWriter:
    def __init__(self, graph: Graph, spine: Spine, roles: AttentionRoles) -> None:
        self.graph, self.spine, self.roles = graph, spine, roles
        self.out = spine.nodes[-1]
        lead = roles.lead if roles.lead else (Label(1),)  # matrices: a batch of one
        self.points = (*lead, roles.query, roles.key)
        self.lead = lead

    def call(self, op: object, *args: object) -> fx.Node:
        """A new node of this operation, before the result."""
        return self.graph.call(op, args, before=self.out)

    def write(self) -> fx.Node | None:
        """The node of the result, after attention is written as plain products of (*lead, rows,
        width) into the graph; None where it has too many dimensions."""
        roles = self.roles
        if len(self.points) > MAX_DIMENSIONS:
            return None
        at = int(roles.turned)
        q = self._factor(roles.first, at, (*self.lead, roles.query, roles.inner))
        k = self._factor(roles.first, 1 - at, (*self.lead, roles.key, roles.inner))
        v = self._factor(roles.second, 1 - roles.weights_at, (*self.lead, roles.key, roles.value))
        scores = self.call(aten.matmul.default, q, self.call(aten.transpose.int, k, -2, -1))
        scores = self._added(scores)
        for node in self.spine.nodes[1:-1]:
            scores = self._again(node, scores)
        made = self.call(aten.matmul.default, scores, v)
        self.graph.replace(self.out, self._as_it_was(made))
        return made

    def _added(self, scores: fx.Node) -> fx.Node:
        """What baddbmm adds."""
        node = self.spine.nodes[0]
        if op_name(node) != "baddbmm":
            return scores
        scale, weight = argument(node, "alpha", 1), argument(node, "beta", 1)
        scores = scores if scale == 1 else self.call(aten.mul.Tensor, scores, scale)
        if weight == 0:  # torch does not read it then
            return scores
        bias = self._operand(node.args[0], self.roles.dims[node])
        bias = bias if weight == 1 else self.call(aten.mul.Tensor, bias, weight)
        return self.call(aten.add.Tensor, scores, bias)

    def _again(self, node: fx.Node, scores: fx.Node) -> fx.Node:
        """A node of the spine, on the scores at their new shape."""
        if op_name(node) in (*TURNS, *REGROUPS, "unsqueeze"):
            return scores
        previous = self.spine.nodes[self.spine.nodes.index(node) - 1]
        dims = self.roles.dims[node]

        def new(arg: fx.Node) -> fx.Node:
            return scores if arg is previous else self._operand(arg, dims)

        if node is self.spine.softmax:
            args: tuple[object, ...] = (scores, -1, *node.args[2:])
        elif op_name(node) in ("expand", "expand_as"):
            return scores
        else:
            args = fx.map_arg(node.args, new)
        made = self.graph.call(node.target, args, fx.map_arg(node.kwargs, new), before=self.out)
        made.meta["replaces"] = node.meta.get("replaces", node.name)
        return made

    def _operand(self, node: fx.Node, dims: LabeledDims) -> fx.Node:
        """Of a pointwise operation on scores of these dimensions."""
        shape = tuple(node.meta["val"].shape)
        near = dims[len(dims) - len(shape) :]
        if near == tuple((label,) for label in self.points[len(self.points) - len(shape) :]):
            return node
        own = tuple(
            dim if size == size_of(dim) else () for dim, size in zip(near, shape, strict=True)
        )
        return self._arranged(node, own, self.points)

    def _factor(self, whole: LabeledProduct, at: int, roles: LabeledDim) -> fx.Node:
        """In this order of dimensions, and broadcast without a copy where others have a dimension
        more."""
        given = whole.tensors[at]
        if op_name(given) not in CASTS:
            return self._broadcast(given, whole.factors[at], roles)
        # Converted last: a kernel reads what is stored.
        made = self._broadcast(given.args[0], whole.factors[at], roles)
        return self.graph.call(given.target, (made, *given.args[1:]), given.kwargs, before=self.out)

    def _broadcast(self, given: fx.Node, dims: LabeledDims, roles: LabeledDim) -> fx.Node:
        node = self._arranged(given, dims, roles)
        sizes, has = [label.size for label in roles], node.meta["val"].shape
        if tuple(has) == tuple(sizes):
            return node
        wanted = [-1 if here == size else size for here, size in zip(has, sizes, strict=True)]
        return self.call(aten.expand.default, node, wanted)

    def _arranged(self, node: fx.Node, dims: LabeledDims, roles: LabeledDim) -> fx.Node:
        """The tensor with one dimension for each role, of size 1 where it has none."""
        while op_name(node) in TURNS:
            order = order_of(node)
            node, dims = node.args[0], tuple(dims[order.index(i)] for i in range(len(order)))
        labels = flat(dims)
        node = self._shaped(node, [label.size for label in labels])
        places = sorted(range(len(labels)), key=lambda i: roles.index(labels[i]))
        if places != list(range(len(labels))):
            node = self.call(aten.permute.default, node, places)
        for at, role in enumerate(roles):
            if role not in labels:
                node = self.call(aten.unsqueeze.default, node, at)
        return node

    def _shaped(self, node: fx.Node, sizes: Sequence[int]) -> fx.Node:
        """What the program has put into another shape before is read as it was."""
        base = node
        while op_name(base) in (*REGROUPS, "unsqueeze", "contiguous", "clone"):
            base = base.args[0]
            if tuple(base.meta["val"].shape) == tuple(sizes):
                return base
        if tuple(node.meta["val"].shape) == tuple(sizes):
            return node
        free = [-1, *sizes[1:]] if node.meta["val"].numel() else list(sizes)
        return self.call(aten.reshape.default, node, free)

    def _as_it_was(self, made: fx.Node) -> fx.Node:
        """The result with the dimensions of the program's own."""
        have = (*self.lead, self.roles.query, self.roles.value)
        labels = flat(self.roles.second.out)
        labels = (*(label for label in self.lead if label not in labels), *labels)
        order = [have.index(label) for label in labels]
        if order != list(range(len(order))):
            made = self.call(aten.permute.default, made, order)
        shape = tuple(self.out.meta["val"].shape)
        if tuple(made.meta["val"].shape) == shape:
            return made
        return self.call(aten.reshape.default, made, [-1, *shape[1:]])
