"""Attention in the spellings of people becomes ``softmax(chain(q @ k^T)) @ v``, a dimension for each role.

Covered: einsum, bmm over flattened heads, baddbmm, products that broadcast keys (grouped and multi-query),
views and permutations anywhere between the first product and the second, scores with keys before queries,
matrices without a batch. What is pointwise on the way is computed at the new shape, its operands through
views: a dimension is only divided, moved or broadcast, so no operand is copied. Keys and values that a
program has copied for the sake of a shape are read where they were. Not covered: keys in two dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from kernel_lsp.rewrite.codegen import chain
from kernel_lsp.rewrite.codegen.attention_axes import (
    REGROUPS,
    TURNS,
    Dim,
    Dims,
    Label,
    Product,
    factors_of,
    finest,
    flat,
    moved,
    order_of,
    product,
    size_of,
)
from kernel_lsp.rewrite.codegen.pointwise import argument_nodes, is_pointwise, op_name
from kernel_lsp.rewrite.graph import Graph, argument, aten

CASTS = ("to", "_to_copy", "type_as")
SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
HANDED_ON = (*CASTS, "dropout", "contiguous", "clone", "alias", "detach", "expand")
LONGEST = 2 * chain.MAX_NODES
MOST_DIMENSIONS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Spine:
    """The way from the first product to the second, each read by the next one alone."""

    nodes: tuple[fx.Node, ...]
    """Both products included."""
    softmax: fx.Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """What each label is. ``lead`` are heads, batches and whatever else has attention of its own."""

    lead: Dim
    query: Label
    key: Label
    inner: Label
    value: Label
    first: Product
    second: Product
    turned: bool
    """Queries are the second factor of the first product."""
    weights_at: int
    """Which factor of the second product the weights are."""
    dims: dict[fx.Node, Dims]
    """Of every node of the spine."""


def spelled(graph: Graph, out: fx.Node) -> fx.Node | None:
    """The second product in the plain spelling, put into the graph in the place of ``out``; None, and a graph
    as it was, where the program says something else."""
    spine = spine_of(graph, out)
    roles = None if spine is None else roles_of(graph, spine)
    if spine is None or roles is None:
        return None
    return _Writer(graph, spine, roles).write()


# --- reading -----------------------------------------------------------------------------


def spine_of(graph: Graph, out: fx.Node) -> Spine | None:
    for node in factors_of(out) or () if op_name(out) != "baddbmm" else ():
        after, reader = list[fx.Node](), out
        while op_name(node) not in SOFTMAX and graph.only_user(node) is reader and _hands_on(node):
            after.append(node)
            node, reader = node.args[0], node
        if op_name(node) in SOFTMAX and graph.only_user(node) is reader:
            before = _from_product(graph, node.args[0], node, LONGEST)
            if before is not None:
                return Spine(nodes=(*before, node, *reversed(after), out), softmax=node)
    return None


def _hands_on(node: fx.Node) -> bool:
    """Between softmax and the second product nothing is computed, but NaN may be made 0."""
    name = op_name(node)
    same = name in (
        "to",
        "_to_copy",
        "type_as",
        "dropout",
        "contiguous",
        "clone",
        "alias",
        "detach",
        "expand",
    )
    same = same and is_pointwise(node) and node.meta["val"].shape == node.args[0].meta["val"].shape
    return same or name == "nan_to_num" or name in (*TURNS, *REGROUPS, "unsqueeze")


def _from_product(graph: Graph, node: fx.Node, reader: fx.Node, steps: int) -> list[fx.Node] | None:
    """The nodes from a product to this one."""
    if steps == 0 or not isinstance(node, fx.Node) or graph.only_user(node) is not reader:
        return None
    if factors_of(node) is not None:
        return [node]
    if op_name(node) in (*TURNS, *REGROUPS, "unsqueeze"):
        ways = [node.args[0]]
    elif is_pointwise(node):
        count = node.meta["val"].numel()
        ways = [arg for _, arg in argument_nodes(node) if arg.meta["val"].numel() == count]
    else:
        return None
    for way in ways:
        if (found := _from_product(graph, way, node, steps - 1)) is not None:
            return [*found, node]
    return None


def roles_of(graph: Graph, spine: Spine) -> Roles | None:
    first, last = spine.nodes[0], spine.nodes[-1]
    scores = product(first)
    dims = None if scores is None else _followed(spine, scores)
    factors = factors_of(last)
    if scores is None or dims is None or factors is None:
        return None
    at = int(factors[0] is not spine.nodes[-2])
    weighed = product(last, (at, dims[spine.nodes[-2]]))
    if weighed is None or factors[0] is factors[1]:
        return None
    return _told(spine, scores, weighed, dims, at)


def _followed(spine: Spine, scores: Product) -> dict[fx.Node, Dims] | None:
    found = {spine.nodes[0]: scores.out}
    for node, previous in zip(spine.nodes[1:-1], spine.nodes, strict=False):
        dims: Dims | None = found[previous]
        assert dims is not None
        if op_name(node) in (*TURNS, *REGROUPS, "unsqueeze"):
            dims = moved(node, dims)
        elif node.meta["val"].shape != previous.meta["val"].shape:
            return None
        if dims is None:
            return None
        found[node] = dims
    return found


def _told(
    spine: Spine, scores: Product, weighed: Product, dims: dict[fx.Node, Dims], at: int
) -> Roles | None:
    soft = dims[spine.softmax]
    keys = finest(soft[int(argument(spine.softmax, "dim")) % len(soft)])
    left, right, points, result = (flat(item) for item in (*scores.factors, scores.out, weighed.out))
    values = flat(weighed.factors[1 - at])
    if len(keys) != 1 or (keys[0] in left) == (keys[0] in right):
        return None
    key, turned = keys[0], keys[0] in left
    own, other = (right, left) if turned else (left, right)
    rows = [label for label in flat(soft) if label in own and label not in (*other, *values)]
    inner = [label for label in own if label not in points]
    value = [label for label in values if label not in points]
    if not rows or len(inner) != 1 or len(value) != 1 or key not in values or key in result:
        return None
    query = max(reversed(rows), key=lambda label: label.size)
    lead = tuple(label for label in flat(soft) if label not in (key, query))
    # Nothing may be summed but the keys and what the scores are products over, and nothing repeated.
    alike = set(result) == {*lead, query, value[0]} and len(set(points)) == len(points) == len(lead) + 2
    known = set(other) <= {*lead, key, inner[0]} and set(own) <= {*lead, query, inner[0]}
    if not alike or not known or not set(values) <= {*lead, key, value[0]} or inner[0] not in other:
        return None
    return Roles(
        lead=lead, query=query, key=key, inner=inner[0], value=value[0], first=scores, second=weighed,
        turned=turned, weights_at=at, dims=dims,
    )  # fmt: skip


# --- writing -----------------------------------------------------------------------------


class _Writer:
    def __init__(self, graph: Graph, spine: Spine, roles: Roles) -> None:
        self.graph, self.spine, self.roles = graph, spine, roles
        self.out = spine.nodes[-1]
        lead = roles.lead if roles.lead else (Label(1),)  # matrices: a batch of one
        self.points = (*lead, roles.query, roles.key)
        self.lead = lead

    def call(self, op: object, *args: object) -> fx.Node:
        return self.graph.call(op, args, before=self.out)

    def write(self) -> fx.Node | None:
        roles = self.roles
        if len(self.points) > MOST_DIMENSIONS:
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

    def _operand(self, node: fx.Node, dims: Dims) -> fx.Node:
        """Of a pointwise operation on scores of these dimensions."""
        shape = tuple(node.meta["val"].shape)
        near = dims[len(dims) - len(shape) :]
        if near == tuple((label,) for label in self.points[len(self.points) - len(shape) :]):
            return node
        own = tuple(dim if size == size_of(dim) else () for dim, size in zip(near, shape, strict=True))
        return self._arranged(node, own, self.points)

    def _factor(self, whole: Product, at: int, roles: Dim) -> fx.Node:
        """In this order of dimensions, and broadcast without a copy where others have a dimension more."""
        given = whole.tensors[at]
        if op_name(given) not in CASTS:
            return self._broadcast(given, whole.factors[at], roles)
        # Converted last: a kernel reads what is stored.
        made = self._broadcast(given.args[0], whole.factors[at], roles)
        return self.graph.call(given.target, (made, *given.args[1:]), given.kwargs, before=self.out)

    def _broadcast(self, given: fx.Node, dims: Dims, roles: Dim) -> fx.Node:
        node = self._arranged(given, dims, roles)
        sizes, has = [label.size for label in roles], node.meta["val"].shape
        if tuple(has) == tuple(sizes):
            return node
        wanted = [-1 if here == size else size for here, size in zip(has, sizes, strict=True)]
        return self.call(aten.expand.default, node, wanted)

    def _arranged(self, node: fx.Node, dims: Dims, roles: Dim) -> fx.Node:
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
