"""Attention written by hand: products, a chain of pointwise operations, softmax or none, products.

Covered: ``softmax(chain(q @ k^T)) @ v`` and ``chain(q @ k^T) @ v`` of rank 3 to 5 with any
strides, float32, bfloat16 and float16; the chain may scale, add biases, fill by masks of any
broadcastable shape; keys and values that are repeated for groups of query heads are read once;
softmax may be in float32 between products of 16 bits; triangles built in the call are computed,
not read, and what they hide is skipped. Not covered: dropout in train mode, operations between
softmax and the second product (but NaN to 0), scores that somebody else reads. Other spellings are
brought into this one by `canonical.py`; what it is worth and its place in the graph are
`fuse.py`'s, the kernel's text `source.py`'s."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.attention.masks import Triangle, end_of, triangle_of
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, WHOLE, argument_nodes, op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
PRODUCTS = ("matmul", "bmm")
SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
CASTS = ("to", "_to_copy", "type_as")
LIBRARY = "scaled_dot_product_attention"
LARGEST_HEAD = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """One attention in the graph."""

    out: fx.Node
    """The second product."""
    scores: fx.Node
    """The first one."""
    softmax: fx.Node | None
    chain: tuple[fx.Node, ...]
    """Pointwise operations between the scores and softmax (or the second product)."""
    weights: tuple[fx.Node, ...]
    """softmax and whatever passes its result on."""
    q: fx.Node
    k: fx.Node
    """[..., keys, head size], or what it is a transposed view of (`k_transposed`)."""
    k_transposed: bool
    """``k`` is [..., head size, keys]."""
    v: fx.Node
    group: int
    """Query heads for each head of keys and values."""
    triangles: dict[fx.Node, Triangle]
    """Masks that need not be read."""
    end: int | None
    """Keys from query + end on have no weight; None when none are known."""

    blind: str | None = None
    """What becomes of a query that sees no key: NaN (None), 0 (``zero``), or 0 whatever made it NaN
    (``never nan``)."""
    as_library: bool = False
    """Stands for a call of the library, whose result has heads inside queries (on CUDA,
    float32)."""

    @property
    def root(self) -> fx.Node:
        """The node whose value goes into softmax."""
        return self.chain[-1] if self.chain else self.scores

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes of the attention, from the first product to the second."""
        return (self.scores, *self.chain, *self.weights, self.out)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the scores, queries and keys last."""
        return tuple(self.scores.meta["val"].shape)

    @property
    def head_sizes(self) -> tuple[int, int]:
        """(size of a query, size of a value) of one head."""
        return int(self.q.meta["val"].shape[-1]), int(self.v.meta["val"].shape[-1])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the queries."""
        return self.q.meta["val"].dtype


def find(graph: Graph, out: fx.Node) -> Attention | None:
    """The attention that ends in this product; None when it is none, or of another kind."""
    if op_name(out) not in PRODUCTS or not _has_attention_shape(out):
        return None
    weights, node = [], out.args[0]
    while _hands_on(node, out) and graph.only_user(node) is not None:
        weights.append(node)
        node = node.args[0]
    if op_name(node) not in SOFTMAX:
        found = _chain(graph, out.args[0], {out})
        return None if found is None or not _bends(found[1]) else _whole(graph, out, found, ())
    if not _last_dimension(node, out) or graph.only_user(node) is None:
        return None
    found = _chain(graph, node.args[0], {node})
    return None if found is None else _whole(graph, out, found, (node, *reversed(weights)))


def _hands_on(node: fx.Node, out: fx.Node) -> bool:
    """It passes weights on: as they are, rounded to the type of the values, or with 0 for NaN."""
    name = op_name(node)
    if name == "nan_to_num":
        return argument(node, "nan") in (None, 0)
    if name in CASTS:
        return node.meta["val"].dtype in (out.meta["val"].dtype, torch.float32)
    return is_identity(node) and is_pointwise(node)


def _has_attention_shape(out: fx.Node) -> bool:
    left, right = (arg.meta["val"] for arg in out.args)
    same = (
        left.dim() == right.dim()
        and left.dim() in (3, 4, 5)
        and left.shape[:-2] == right.shape[:-2]
    )
    return bool(same and left.dtype == right.dtype and left.dtype in FLOATS and left.numel() > 0)


def _last_dimension(softmax: fx.Node, out: fx.Node) -> bool:
    """Over the keys, in the type of the values or in float32."""
    rank, dtype = softmax.meta["val"].dim(), softmax.meta["val"].dtype
    own = {softmax.args[0].meta["val"].dtype, out.meta["val"].dtype, torch.float32}
    return int(argument(softmax, "dim")) % rank == rank - 1 and dtype in own and _widens(softmax)


def _widens(node: fx.Node) -> bool:
    """The result has at least the digits of the operand."""
    dtypes = [
        arg.meta["val"].dtype
        for _, arg in argument_nodes(node)
        if arg.meta["val"].is_floating_point()
    ]
    return all(node.meta["val"].dtype in (dtype, torch.float32) for dtype in dtypes)


def _chain(
    graph: Graph, root: fx.Node, readers: set[fx.Node]
) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The first product and the pointwise operations from it to ``root``."""
    nodes = chain.before(graph, root, readers, locate_in(tuple(root.meta["val"].shape)))
    inside = set(nodes)
    outer = (
        [root] if not nodes else [a for n in nodes for _, a in argument_nodes(n) if a not in inside]
    )
    products = list(
        dict.fromkeys(a for a in outer if op_name(a) in PRODUCTS and _has_attention_shape(a))
    )
    scores = [
        p
        for p in products
        if _private(graph, p, inside | readers) and p.meta["val"].shape == root.meta["val"].shape
    ]
    # A product of queries with relative positions, added to it, is an operand like others.
    if not scores or not all(_keeps_digits(n) for n in _spine(nodes, scores[0])):
        return None
    return scores[0], tuple(nodes)


def _keeps_digits(node: fx.Node) -> bool:
    return node.meta["val"].dtype in FLOATS and _widens(node)


def _spine(nodes: list[fx.Node], scores: fx.Node) -> list[fx.Node]:
    """Nodes that the scores flow through."""
    reached = {scores}
    for node in nodes:
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return [node for node in nodes if node in reached]


def _private(graph: Graph, node: fx.Node, readers: set[fx.Node]) -> bool:
    return not graph.is_output(node) and all(user in readers for user in node.users)


def _bends(nodes: tuple[fx.Node, ...]) -> bool:
    """Without softmax and with nothing but factors, the products are better swapped."""
    return any(op_name(node) not in ("mul", "div", "neg") for node in chain.real(nodes))


def _whole(
    graph: Graph,
    out: fx.Node,
    found: tuple[fx.Node, tuple[fx.Node, ...]],
    weights: tuple[fx.Node, ...],
) -> Attention | None:
    """``weights``: softmax and what passes its result on; nothing where there is none."""
    scores, nodes = found
    softmax = weights[0] if weights else None
    q, keys = _find_stored(scores.args[0], out), _find_stored(scores.args[1], out)
    flipped = op_name(keys) in ("transpose", "mT") and _swaps_last(keys)
    k, group_k = find_repeated(_find_stored(keys.args[0] if flipped else keys, out))
    v, group_v = find_repeated(out.args[1])
    k = _find_stored(k, out)
    dtypes = {node.meta["val"].dtype for node in (q, k, v, out)}
    if group_k != group_v or len(dtypes) != 1:
        return None
    if max(q.meta["val"].shape[-1], v.meta["val"].shape[-1]) > LARGEST_HEAD[q.meta["val"].dtype]:
        return None
    masks = {n for node in nodes for _, n in argument_nodes(node)}
    # A row of ones that is broadcast over queries is no triangle over them.
    square = {n for n in masks if n.meta["val"].shape[-2:] == scores.meta["val"].shape[-2:]}
    triangles = {n: t for n in graph.ordered(square) if (t := triangle_of(graph, n))}
    end = end_of(nodes[-1] if nodes else scores, triangles, softmax is not None)
    return Attention(
        out=out, scores=scores, softmax=softmax, chain=nodes, weights=weights, q=q, k=k,
        k_transposed=not flipped, v=v, group=group_k, triangles=triangles, end=end,
        blind=_blind(weights),
    )  # fmt: skip


def _find_stored(node: fx.Node, out: fx.Node) -> fx.Node:
    """Behind a conversion to float32: products of 16-bit numbers are summed in float32 here
    anyway."""
    dtype = out.meta["val"].dtype
    while op_name(node) in CASTS and node.args[0].meta["val"].dtype == dtype and _widens(node):
        node = node.args[0]
    return node


def _blind(weights: tuple[fx.Node, ...]) -> str | None:
    names = {op_name(node) for node in weights}
    return "never nan" if "nan_to_num" in names else "zero" if "_safe_softmax" in names else None


def _swaps_last(node: fx.Node) -> bool:
    if op_name(node) == "mT":
        return True
    rank = node.meta["val"].dim()
    return sorted(int(dim) % rank for dim in node.args[1:3]) == [rank - 2, rank - 1]


def find_repeated(node: fx.Node) -> tuple[fx.Node, int]:
    """(what is repeated, how often) behind repeat_interleave over heads, or expand and reshape,
    which give each head to a run of others."""
    if op_name(node) == "repeat_interleave" and node.meta["val"].dim() == 4:
        times, dim = argument(node, "repeats"), argument(node, "dim")
        if isinstance(times, int) and dim is not None and int(dim) % 4 == 1:
            return node.args[0], times
    if op_name(node) in ("reshape", "view", "flatten", "_unsafe_view") and op_name(
        node.args[0]
    ) in (
        "expand",
        "contiguous",
        "clone",
    ):
        return _find_expanded(node)
    return node, 1


def _find_expanded(node: fx.Node) -> tuple[fx.Node, int]:
    wide = node.args[0] if op_name(node.args[0]) == "expand" else node.args[0].args[0]
    base = wide.args[0] if op_name(wide) == "expand" else None
    if base is None or op_name(base) != "unsqueeze" or wide.meta["val"].dim() != 5:
        return node, 1
    batch, heads, times, *rest = wide.meta["val"].shape
    at = int(argument(base, "dim")) % 5
    inner = base.args[0]
    same = tuple(inner.meta["val"].shape) == (batch, heads, *rest)
    if at != 2 or not same or tuple(node.meta["val"].shape) != (batch, heads * times, *rest):
        return node, 1
    return inner, int(times)


# --- operands ----------------------------------------------------------------------------


def locate_in(sizes: tuple[int, ...]) -> chain.Locate:
    """Operands of the chain broadcast to the scores; they are addressed by their own strides."""

    def locate(node: fx.Node) -> tuple[int, ...] | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dim() > len(sizes):
            return None
        if value.dtype not in (*FLOATS, *WHOLE, torch.bool):
            return None
        lead = len(sizes) - value.dim()
        axes = tuple(lead + i for i, size in enumerate(value.shape) if size != 1)
        fits = all(value.shape[axis - lead] == sizes[axis] for axis in axes)
        return axes if fits else None

    return locate
