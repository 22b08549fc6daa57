"""Which way scores take from the first product of an attention to the second, and which label has
which role.

A way is found backwards from the second product, through softmax; each node on it is read by the
next one alone. Roles follow from the labels: keys are what softmax runs over and the second
product sums, queries have scores of their own, and everything else that scores have leads. Not
covered: keys or features in two parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from kernel_lsp.rewrite.codegen.attention.axes import (
    REGROUPS,
    TURNS,
    Label,
    LabeledDim,
    LabeledDims,
    LabeledProduct,
    factors_of,
    finest,
    flat,
    move_dims,
    product,
)
from kernel_lsp.rewrite.codegen.core.nodes import argument_nodes, op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.graph import Graph, argument

CASTS = ("to", "_to_copy", "type_as")
SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
HANDED_ON = (*CASTS, "dropout", "contiguous", "clone", "alias", "detach", "expand")
LONGEST = 2 * chain.MAX_NODES


@dataclass(frozen=True, kw_only=True, slots=True)
class Spine:
    """The way from the first product to the second, each read by the next one alone."""

    nodes: tuple[fx.Node, ...]
    """Both products included."""
    softmax: fx.Node


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRoles:
    """What each label is. ``lead`` are heads, batches and whatever else has attention of its
    own."""

    lead: LabeledDim
    query: Label
    key: Label
    inner: Label
    value: Label
    first: LabeledProduct
    second: LabeledProduct
    turned: bool
    """Queries are the second factor of the first product."""
    weights_at: int
    """Which factor of the second product the weights are."""
    dims: dict[fx.Node, LabeledDims]
    """Of every node of the spine."""


def spine_of(graph: Graph, out: fx.Node) -> Spine | None:
    """The way from a product through softmax into the product ``out``; None: ``out`` is no product
    of weights."""
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
    same = (
        name in HANDED_ON
        and is_pointwise(node)
        and node.meta["val"].shape == node.args[0].meta["val"].shape
    )
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


def roles_of(spine: Spine) -> AttentionRoles | None:
    """Which label has which part in the two products of the spine; None: they are no attention."""
    first, last = spine.nodes[0], spine.nodes[-1]
    scores = product(first)
    dims = None if scores is None else _follow_spine(spine, scores)
    factors = factors_of(last)
    if scores is None or dims is None or factors is None:
        return None
    at = int(factors[0] is not spine.nodes[-2])
    weighed = product(last, (at, dims[spine.nodes[-2]]))
    if weighed is None or factors[0] is factors[1]:
        return None
    return _assign_roles(spine, _Labeled(scores, weighed, dims, at))


@dataclass(frozen=True, slots=True)
class _Labeled:
    """Both products of a spine with their labels."""

    scores: LabeledProduct
    weighed: LabeledProduct
    dims: dict[fx.Node, LabeledDims]
    weights_at: int

    @property
    def values(self) -> list[Label]:
        """Labels of the dimensions of the values, flat."""
        return list(flat(self.weighed.factors[1 - self.weights_at]))


def _follow_spine(spine: Spine, scores: LabeledProduct) -> dict[fx.Node, LabeledDims] | None:
    found = {spine.nodes[0]: scores.out}
    for node, previous in zip(spine.nodes[1:-1], spine.nodes, strict=False):
        dims: LabeledDims | None = found[previous]
        assert dims is not None
        if op_name(node) in (*TURNS, *REGROUPS, "unsqueeze"):
            dims = move_dims(node, dims)
        elif node.meta["val"].shape != previous.meta["val"].shape:
            return None
        if dims is None:
            return None
        found[node] = dims
    return found


def _assign_roles(spine: Spine, labeled: _Labeled) -> AttentionRoles | None:
    scores, values = labeled.scores, labeled.values
    soft = labeled.dims[spine.softmax]
    keys = finest(soft[int(argument(spine.softmax, "dim")) % len(soft)])
    left, right = (flat(item) for item in scores.factors)
    if len(keys) != 1 or (keys[0] in left) == (keys[0] in right):
        return None
    key, turned = keys[0], keys[0] in left
    own, other = (right, left) if turned else (left, right)
    query = _query(flat(soft), own, {*other, *values})
    inner, value = _only_summed(own, scores), _only_summed(values, scores)
    if query is None or inner is None or value is None:
        return None
    roles = AttentionRoles(
        lead=tuple(label for label in flat(soft) if label not in (key, query)),
        query=query,
        key=key,
        inner=inner,
        value=value,
        first=scores,
        second=labeled.weighed,
        turned=turned,
        weights_at=labeled.weights_at,
        dims=labeled.dims,
    )
    is_attention = _sums_over_keys(roles, values) and _scores_by_features(roles, own, other)
    return roles if is_attention else None


def _only_summed(labels: Iterable[Label], scores: LabeledProduct) -> Label | None:
    """The one label that scores do not have."""
    found = [label for label in labels if label not in flat(scores.out)]
    return found[0] if len(found) == 1 else None


def _query(soft: LabeledDim, own: LabeledDim, beside: set[Label]) -> Label | None:
    """Queries: the longest of the last labels that only their own factor has."""
    rows = [label for label in soft if label in own and label not in beside]
    return max(reversed(rows), key=lambda label: label.size) if rows else None


def _sums_over_keys(roles: AttentionRoles, values: list[Label]) -> bool:
    """The second product sums over the keys, and nothing else is summed or repeated."""
    result = set(flat(roles.second.out))
    return (
        roles.key in values
        and result == {*roles.lead, roles.query, roles.value}
        and roles.key not in result
        and set(values) <= {*roles.lead, roles.key, roles.value}
    )


def _scores_by_features(roles: AttentionRoles, own: LabeledDim, other: LabeledDim) -> bool:
    """The first product sums over the features of a query and a key alone; nothing is repeated."""
    points = flat(roles.first.out)
    return (
        len(set(points)) == len(points) == len(roles.lead) + 2
        and roles.inner in other
        and set(other) <= {*roles.lead, roles.key, roles.inner}
        and set(own) <= {*roles.lead, roles.query, roles.inner}
    )
