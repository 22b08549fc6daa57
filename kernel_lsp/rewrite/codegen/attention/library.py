"""The library's attention: what it computes, spelled out, and where it may stand for attention by
hand.

scaled_dot_product_attention gives 0 to a query that sees no key, where softmax by hand gives NaN.
So it stands for a person's attention without a mask, with one that leaves every query a key, or
with numbers that are added (`added_mask`): there a row of -inf alone is made NaN before. What is
filled by a mask is no such number: a NaN that it hides would come through."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.attention import source as attention_source
from kernel_lsp.rewrite.codegen.attention.match import CASTS, Attention, find_repeated
from kernel_lsp.rewrite.codegen.core.nodes import argument_nodes, op_name
from kernel_lsp.rewrite.codegen.regions import chain
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten


# --- calls of the library ----------------------------------------------------------------


def is_slow(node: fx.Node) -> bool:
    """Whether it is in float32, where the library's kernel is slower than ours."""
    q, k, v = (arg.meta["val"] for arg in node.args[:3])
    alike = q.dim() == k.dim() == v.dim() and q.dtype == k.dtype == v.dtype == torch.float32
    return bool(
        alike
        and not argument(node, "dropout_p")
        and q.dim() in (3, 4)
        and _group_size(node) is not None
    )


def _group_size(node: fx.Node) -> int | None:
    """Heads of queries for each head of keys and values."""
    q, k, v = (arg.meta["val"] for arg in node.args[:3])
    if q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return 1
    whole = bool(argument(node, "enable_gqa")) and q.dim() == 4 and k.shape[:2] == v.shape[:2]
    fits = whole and q.shape[0] == k.shape[0] and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    return int(q.shape[1] // k.shape[1]) if fits else None


def by_hand(graph: Graph, node: fx.Node) -> fx.Node:
    """Put what the library computes into the graph, operation by operation; the call itself
    goes."""
    q, k, v = node.args[:3]
    if (times := _group_size(node)) not in (None, 1):
        k, v = (
            graph.call(aten.repeat_interleave.self_int, (x, times, 1), before=node) for x in (k, v)
        )
    given, mask = argument(node, "scale"), argument(node, "attn_mask")
    size = q.meta["val"].shape[-1]
    turned = graph.call(aten.transpose.int, (k, -2, -1), before=node)
    scores = graph.call(aten.matmul.default, (q, turned), before=node)
    scores = graph.call(
        aten.mul.Tensor, (scores, given if given is not None else size**-0.5), before=node
    )
    if argument(node, "is_causal"):
        scores = graph.call(
            aten.masked_fill.Scalar, (scores, _later(graph, scores), -math.inf), before=node
        )
    if mask is not None:
        scores = _apply_mask(graph, node, scores, mask)
    softmax = aten.softmax.int if mask is None else aten._safe_softmax.default
    weights = graph.call(softmax, (scores, -1), before=node)
    out = graph.call(aten.matmul.default, (weights, v), before=node)
    graph.replace(node, out)
    return out


def _later(graph: Graph, scores: fx.Node) -> fx.Node:
    """True at keys behind the query."""
    value = scores.meta["val"]
    options = {"dtype": torch.bool, "device": value.device}
    reader = scores.next
    ones = graph.call(aten.ones.default, (list(value.shape[-2:]),), options, before=reader)
    return graph.call(aten.triu.default, (ones, 1), before=reader)


def _apply_mask(graph: Graph, node: fx.Node, scores: fx.Node, mask: fx.Node) -> fx.Node:
    """True lets a key be seen; numbers are added."""
    if mask.meta["val"].dtype != torch.bool:
        return graph.call(aten.add.Tensor, (scores, mask), before=node)
    hidden = graph.call(aten.logical_not.default, (mask,), before=node)
    return graph.call(aten.masked_fill.Scalar, (scores, hidden, -math.inf), before=node)


def is_repeated(node: fx.Node) -> bool:
    """Keys and values are copied for each head of a group, in a type for which the library knows
    groups."""
    q, k, v = node.args[:3]
    low = q.meta["val"].dtype in (torch.float16, torch.bfloat16) and q.meta["val"].dim() == 4
    bare = argument(node, "attn_mask") is None and not argument(node, "dropout_p")
    (key, times), (value, others) = find_repeated(k), find_repeated(v)
    fits = times == others > 1 and key.meta["val"].shape[:2] == value.meta["val"].shape[:2]
    return bool(
        low and bare and fits and not argument(node, "enable_gqa") and _group_size(node) == 1
    )


def may_be_causal(node: fx.Node) -> bool:
    """Whether the library's call reads a mask where a causal one might do: its fastest kernels
    take none."""
    q, k, v = (arg.meta["val"] for arg in node.args[:3])
    alike = (
        q.dim() == k.dim() == v.dim()
        and q.dim() in (3, 4)
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    )
    return bool(
        alike and argument(node, "attn_mask") is not None and not argument(node, "dropout_p")
    )


def share(graph: Graph, node: fx.Node) -> None:
    """Makes a call of the library's attention read keys and values once for each group of heads
    that shares them, instead of repeated."""
    q, (k, _), (v, _) = node.args[0], *(find_repeated(arg) for arg in node.args[1:3])
    call = graph.call(
        node.target,
        (q, k, v, None, 0.0, bool(argument(node, "is_causal"))),
        {"scale": argument(node, "scale"), "enable_gqa": True},
        before=node,
        name="attended",
    )
    graph.replace(node, call)


# --- attention by hand -------------------------------------------------------------------


def means(item: Attention) -> bool:
    """Whether the library computes the same: a constant factor, and no mask or one that is
    causal."""
    plain = item.softmax is not None and factor(item) is not None and len(item.sizes) <= 4
    # In float32 the library has no kernel for groups: it repeats keys and values as the program
    # does.
    grouped = item.group == 1 or (len(item.sizes) == 4 and item.dtype != torch.float32)
    return plain and grouped and item.blind != "never nan"


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedMask:
    """Scores are multiplied by a number, then a tensor is added."""

    factor: float
    mask: fx.Node


def added_mask(graph: Graph, item: Attention) -> AddedMask | None:
    """What is added to the scores, as a mask that the library takes; None where the chain does
    anything else, or the library has no kernel for it: groups, a mask that is trained, another type
    of 16 bits."""
    plain = item.softmax is not None and item.group == 1 and len(item.sizes) == 4
    if not plain or item.end is not None or item.blind == "never nan":
        return None
    scale, seen, mask = 1.0, item.scores, None
    for node in chain.real(item.chain):
        scaled = _scaled(scale, node, seen) if mask is None else None
        added = _added(node, seen) if mask is None else None
        if scaled is not None:
            scale = scaled
        elif added is not None:
            mask = added
        elif not _casts(node, seen):
            return None
        seen = node
    if mask is None or not math.isfinite(scale) or not _is_mask(graph, item, mask):
        return None
    return AddedMask(factor=scale, mask=mask)


def _scaled(scale: float, node: fx.Node, seen: fx.Node) -> float | None:
    """The factor after a node that multiplies or divides the scores by a number."""
    args = argument_nodes(node)
    if op_name(node) not in ("mul", "div") or len(args) != 1 or args[0][1] is not seen:
        return None
    number = [arg for arg in node.args if isinstance(arg, (int, float))]
    if len(number) != 1 or (op_name(node) == "div" and (node.args[0] is not seen or not number[0])):
        return None
    return scale * number[0] if op_name(node) == "mul" else scale / number[0]


def _added(node: fx.Node, seen: fx.Node) -> fx.Node | None:
    """The tensor that a node adds to the scores."""
    if op_name(node) != "add" or argument(node, "alpha", 1) != 1:
        return None
    args = [arg for arg in node.args[:2] if isinstance(arg, fx.Node)]
    left = [arg for arg in args if arg is not seen]
    return left[0] if len(args) == 2 and len(left) == 1 else None


def _is_mask(graph: Graph, item: Attention, mask: fx.Node) -> bool:
    """Numbers of the queries' type, since another would be rounded; a matrix for all heads or one
    for each, which the library's kernels take."""
    value = mask.meta["val"]
    if value.dtype != item.dtype or value.dim() not in (2, 4):
        return False
    if value.shape[-1] != item.sizes[-1]:
        return False
    return not (graph.gradients and graph.carries(mask))


def factor(item: Attention) -> float | None:
    """What the scores are multiplied by, when the chain does nothing else (but hide what is
    causal)."""
    scale, seen = 1.0, item.scores
    for node in chain.real(item.chain):
        if (scaled := _scaled(scale, node, seen)) is not None:
            scale = scaled
        elif node in item.triangles:
            continue
        elif not _hides_later(item, node) and not _casts(node, seen):
            return None
        seen = node
    return scale if item.end in (None, 1) and math.isfinite(scale) else None


def _casts(node: fx.Node, seen: fx.Node) -> bool:
    return op_name(node) in CASTS and node.args[0] is seen


def _hides_later(item: Attention, node: fx.Node) -> bool:
    """The last step, and with a triangle: what it fills is said by ``end``."""
    last = all(
        op_name(other) in CASTS
        for other in chain.real(item.chain)[chain.real(item.chain).index(node) + 1 :]
    )
    if item.end != 1 or not last:
        return False
    if op_name(node) in ("masked_fill", "where"):
        return node.args[0 if op_name(node) == "where" else 1] in item.triangles
    masks = [item.triangles[n] for _, n in argument_nodes(node) if n in item.triangles]
    return op_name(node) == "add" and any(mask.value == -math.inf for mask in masks)


def call(graph: Graph, item: Attention) -> None:
    """Puts the library's attention where the attention by hand stands, its mask and casts
    included."""
    k = (
        graph.call(aten.transpose.int, (item.k, -2, -1), before=item.out)
        if item.k_transposed
        else item.k
    )
    added = None if means(item) else added_mask(graph, item)
    mask = None if added is None else _with_blind_rows(graph, item, added.mask)
    made = graph.call(
        aten.scaled_dot_product_attention.default,
        (item.q, k, item.v, mask, 0.0, item.end is not None),
        {
            "scale": factor(item) if added is None else added.factor,
            **({"enable_gqa": True} if item.group > 1 else {}),
        },
        before=item.out,
        name="attended",
    )
    plain = attention_source.result_order(graph, item) == list(range(len(item.sizes)))
    if item.out.meta["val"].is_contiguous() and plain:
        # The library may lay it out as it lays out queries.
        made = graph.call(aten.contiguous.default, (made,), before=item.out, name="mixed")
    graph.replace(item.out, made)


def _with_blind_rows(graph: Graph, item: Attention, mask: fx.Node) -> fx.Node:
    """NaN for the queries that the mask leaves no key, as softmax by hand has it."""
    if item.blind == "zero":
        return mask
    hidden = graph.call(aten.eq.Scalar, (mask, -math.inf), before=item.out, name="hidden")
    blind = graph.call(aten.all.dim, (hidden, -1, True), before=item.out, name="blind")
    return graph.call(aten.masked_fill.Scalar, (mask, blind, math.nan), before=item.out)
