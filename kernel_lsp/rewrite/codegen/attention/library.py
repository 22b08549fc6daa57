"""The library's attention: what it computes, spelled out, and where it may stand for attention by
hand.

scaled_dot_product_attention gives 0 to a query that sees no key, where softmax by hand gives NaN.
So it stands for a person's attention only without a mask, or with one that leaves every query a
key."""

from __future__ import annotations

import math

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.attention import source as attention_source
from kernel_lsp.rewrite.codegen.attention.match import CASTS, Attention, find_repeated
from kernel_lsp.rewrite.codegen.core import chain
from kernel_lsp.rewrite.codegen.pointwise.operations import argument_nodes, op_name
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten


# --- calls of the library ----------------------------------------------------------------


def is_slow(node: fx.Node) -> bool:
    """In float32, where its kernel is slower than ours."""
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
    """It has a mask, and reads it: the library's fastest kernels take none."""
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
    """It computes the same: a constant factor, and no mask or one that is causal."""
    plain = item.softmax is not None and factor(item) is not None and len(item.sizes) <= 4
    # In float32 the library has no kernel for groups: it repeats keys and values as the program
    # does.
    grouped = item.group == 1 or (len(item.sizes) == 4 and item.dtype != torch.float32)
    return plain and grouped and item.blind != "never nan"


def factor(item: Attention) -> float | None:
    """What the scores are multiplied by, when the chain does nothing else (but hide what is
    causal)."""
    scale, seen = 1.0, item.scores
    for node in chain.real(item.chain):
        args = argument_nodes(node)
        if op_name(node) in ("mul", "div") and len(args) == 1 and args[0][1] is seen:
            number = [arg for arg in node.args if isinstance(arg, (int, float))]
            if len(number) != 1 or (op_name(node) == "div" and node.args[0] is not seen):
                return None
            scale = scale * number[0] if op_name(node) == "mul" else scale / number[0]
        elif node in item.triangles:
            continue
        elif not _hides_later(item, node) and not (op_name(node) in CASTS and args[0][1] is seen):
            return None
        seen = node
    return scale if item.end in (None, 1) and math.isfinite(scale) else None


def _hides_later(item: Attention, node: fx.Node) -> bool:
    """The last step, and with a triangle: what it fills is told by ``end``."""
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
    k = (
        graph.call(aten.transpose.int, (item.k, -2, -1), before=item.out)
        if item.k_transposed
        else item.k
    )
    made = graph.call(
        aten.scaled_dot_product_attention.default,
        (item.q, k, item.v, None, 0.0, item.end is not None),
        {"scale": factor(item), **({"enable_gqa": True} if item.group > 1 else {})},
        before=item.out,
        name="attended",
    )
    plain = attention_source.result_order(graph, item) == list(range(len(item.sizes)))
    if (
        item.out.meta["val"].is_contiguous() and plain
    ):  # the library may lay it out as it lays out queries
        made = graph.call(aten.contiguous.default, (made,), before=item.out, name="mixed")
    graph.replace(item.out, made)
