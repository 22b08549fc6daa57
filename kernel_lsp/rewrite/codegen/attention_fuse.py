"""Attention as a rewrite: what it is worth, its parameters and proofs, and the launch in the graph.

What counts as attention is attention.py's. Every rate is one of an H200.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite import cost as base_cost
from kernel_lsp.rewrite.codegen import attention_source, chain, cost, launching
from kernel_lsp.rewrite.codegen.attention import LIBRARY, Attention, find
from kernel_lsp.rewrite.codegen.pointwise import argument_nodes, op_name
from kernel_lsp.rewrite.codegen.source import next_power_of_two
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
FLOPS = {torch.float32: 55e12, torch.bfloat16: 280e12, torch.float16: 280e12}
"""What the kernel reaches (H200, 2026-11-21, heads of 64: 26 GFLOP in 0.46 and 0.09 ms)."""
LIBRARY_FLOPS = {torch.float32: 32e12, torch.bfloat16: 390e12, torch.float16: 390e12}
"""What the library reaches (0.80 and 0.066 ms)."""
EAGER_FLOPS = {torch.float32: 45e12, torch.bfloat16: 450e12, torch.float16: 450e12}
FEW_QUERIES = 16
"""Below, eager multiplies matrices by vectors: it reads keys and values at 0.35 of copy speed."""
MIN_SAVING = 0.1


def matches(graph: Graph) -> list[Match]:
    found = [find(graph, node) for node in graph.nodes]
    by_hand = [match for item in found if item is not None for match in _matches(graph, item)]
    calls = [
        _call_match(graph, node) for node in graph.nodes if op_name(node) == LIBRARY and _plain_call(node)
    ]
    return [*by_hand, *(match for match in calls if match is not None)]


def _plain_call(node: fx.Node) -> bool:
    """The library's attention in float32, where its kernel is slower than ours; without a mask tensor."""
    q, k, v = (arg.meta["val"] for arg in node.args[:3])
    alike = q.dim() == k.dim() == v.dim() and q.dtype == k.dtype == v.dtype == torch.float32
    bare = argument(node, "attn_mask") is None and not argument(node, "dropout_p")
    return bool(alike and bare and q.dim() in (3, 4) and q.shape[:-2] == k.shape[:-2] == v.shape[:-2])


def _call_match(graph: Graph, node: fx.Node) -> Match | None:
    twin = graph.copy()
    item = find(twin, _by_hand(twin, twin.named(node.name)))
    if item is None or item.sizes[-2] < FEW_QUERIES:
        return None
    flops = 2.0 * math.prod(item.sizes) * sum(item.head_sizes) * (0.6 if item.end is not None else 1.0)
    library_s, own_s = (flops / rate[item.dtype] + cost.TRITON_OVERHEAD_S for rate in (LIBRARY_FLOPS, FLOPS))
    others = sum(cost.eager_seconds(graph, other) for other in graph.nodes if other is not node)
    worth = own_s < library_s * (1.0 - MIN_SAVING)
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary=f"compute {_kind(item)} on tensor cores with float32's error",
        benefit=round((library_s - own_s) / (library_s + others), 4) if worth else 0.0,
        plain=False,
        data={"out": node.name, "library": False, "parameters": parameters(item)},
    )


def _by_hand(graph: Graph, node: fx.Node) -> fx.Node:
    """Put what the library computes into the graph, operation by operation; the call itself goes."""
    q, k, v = node.args[:3]
    given = argument(node, "scale")
    size = q.meta["val"].shape[-1]
    turned = graph.call(aten.transpose.int, (k, -2, -1), before=node)
    scores = graph.call(aten.matmul.default, (q, turned), before=node)
    scores = graph.call(aten.mul.Tensor, (scores, given if given is not None else size**-0.5), before=node)
    if argument(node, "is_causal"):
        value = scores.meta["val"]
        options = {"dtype": torch.bool, "device": value.device}
        ones = graph.call(aten.ones.default, (list(value.shape[-2:]),), options, before=node)
        hidden = graph.call(aten.triu.default, (ones, 1), before=node)
        scores = graph.call(aten.masked_fill.Scalar, (scores, hidden, -math.inf), before=node)
    weights = graph.call(aten.softmax.int, (scores, -1), before=node)
    out = graph.call(aten.matmul.default, (weights, v), before=node)
    graph.replace(node, out)
    return out


def _matches(graph: Graph, item: Attention) -> list[Match]:
    own = Match(
        nodes=item.nodes,
        label=graph.label(*item.nodes),
        summary=f"compute {_kind(item)} tile by tile, without writing the scores",
        benefit=_benefit(graph, item, FLOPS[item.dtype]),
        plain=False,
        data={"out": item.out.name, "library": False, "parameters": parameters(item)},
    )
    if not for_library(item):
        return [own]
    library = Match(
        nodes=item.nodes,
        label=graph.label(item.scores, item.out),
        summary=f"call the library's attention for {_kind(item)}",
        benefit=_benefit(graph, item, LIBRARY_FLOPS[item.dtype]) if item.sizes[-2] >= FEW_QUERIES else 0.0,
        data={"out": item.out.name, "library": True, "parameters": {}},
    )
    return [own, library]


def _kind(item: Attention) -> str:
    causal = "causal " if item.end is not None else ""
    return f"{causal}{'' if item.softmax is not None else 'softmax-free '}attention"


def _benefit(graph: Graph, item: Attention, flops_per_s: float) -> float:
    rates = base_cost.RATES.get(graph.device, base_cost.RATES["cpu"])
    head, value = item.head_sizes
    points = math.prod(item.sizes)
    flops = 2.0 * points * (head + value)
    moved = points * item.scores.meta["val"].element_size()
    passes = 2 + 2 * (len(chain.real(item.chain)) + (item.softmax is not None))
    few = item.sizes[-2] < FEW_QUERIES
    operands = sum(base_cost.moved_bytes_of(graph, node) for node in (item.k, item.v)) * item.group
    products_s = max(flops / EAGER_FLOPS[item.dtype], operands / ((0.35 if few else 1.0) * rates.bytes_per_s))
    eager_s = products_s + passes * moved / rates.bytes_per_s
    block = parameters(item)["BLOCK_QUERIES"][0]
    tiles = -(-item.sizes[-2] // block) * block / item.sizes[-2]
    seen = tiles * (0.6 if item.end is not None else 1.0)
    tensors = sum(base_cost.moved_bytes_of(graph, node) for node in (item.q, item.k, item.v, item.out))
    fused_s = max(flops * seen / flops_per_s, tensors / rates.bytes_per_s) + cost.TRITON_OVERHEAD_S
    if fused_s > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    others = sum(cost.eager_seconds(graph, node) for node in graph.nodes if node not in set(item.nodes))
    return round((eager_s - fused_s) / (eager_s + others), 4)


def parameters(item: Attention) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    queries, keys = (max(16, next_power_of_two(size)) for size in item.sizes[-2:])
    low = item.dtype != torch.float32
    columns = [64, 128] if low else [32] if max(item.head_sizes) > 64 else [64]
    found: dict[str, list[Any]] = {
        "BLOCK_QUERIES": list(dict.fromkeys(min(size, queries) for size in (128, 64))),
        "BLOCK_KEYS": list(dict.fromkeys(min(size, keys) for size in columns)),
        "num_warps": [8, 4] if queries >= 128 else [4, 2],
    }
    return found if low else {**found, "precision": ["bf16x6", "tf32x3"]}


# --- applying it -------------------------------------------------------------------------


def for_library(item: Attention) -> bool:
    """scaled_dot_product_attention means the same: a constant factor, and no mask or one that is causal."""
    return item.softmax is not None and factor(item) is not None and item.group == 1


def factor(item: Attention) -> float | None:
    """What the scores are multiplied by, when the chain does nothing else (but hide what is causal)."""
    scale, seen = 1.0, item.scores
    for node in chain.real(item.chain):
        args = argument_nodes(node)
        if op_name(node) in ("mul", "div") and len(args) == 1 and args[0][1] is seen:
            number = [arg for arg in node.args if isinstance(arg, (int, float))]
            if len(number) != 1 or (op_name(node) == "div" and node.args[0] is not seen):
                return None
            scale = scale * number[0] if op_name(node) == "mul" else scale / number[0]
        elif op_name(node) == "masked_fill" and item.end == 1 and argument(node, "mask") in item.triangles:
            if node is not item.chain[-1]:
                return None
        elif node in item.triangles:
            continue
        else:
            return None
        seen = node
    return scale if item.end in (None, 1) and math.isfinite(scale) else None


def _found(graph: Graph, match: Match) -> Attention | None:
    """The match's attention; a call of the library is spelled out in the graph first."""
    node = graph.named(match.data["out"])
    if op_name(node) != LIBRARY:
        return find(graph, node)
    item = find(graph, _by_hand(graph, node))
    return None if item is None else replace(item, as_library=True)


def proofs(graph: Graph, match: Match) -> list[Proof]:
    item = _found(graph.copy(), match)
    assert item is not None
    over = "softmax runs over the keys" if item.softmax is not None else "no softmax between the products"
    found = [
        Proof(claim=over, holds=True, because="its dimension is the last one of the scores"),
        Proof(claim="nobody else reads the scores or the weights", holds=True, because="the graph's edges"),
        Proof(
            claim="no gradient is lost", holds=True,
            because="the dispatch guard takes the original path while gradients are recorded",
        ),
    ]  # fmt: skip
    if item.end is not None:
        found.append(
            Proof(
                claim=f"keys from query + {item.end} on have no weight",
                holds=True,
                because="the mask is a triangle of ones made in this call",
            )
        )
    return found


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    item = _found(graph, match)
    if item is None:
        raise RewriteError(
            f"{match.label} is no longer an attention", "apply it before what changes its parts"
        )
    if item.end is not None:
        graph.caveat("an infinite or NaN value at a hidden key no longer reaches the result")
    graph.caveat("softmax is computed online: sums run in another order")
    if match.data["library"]:
        return _call_library(graph, item)
    defaults = {name: choices[0] for name, choices in parameters(item).items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    name = launching.unique_name(graph, "flash_attention" if item.softmax is not None else "fused_attention")
    kernel, inputs = attention_source.emit(graph, item, {**defaults, **known}, name)
    shape, order = tuple(item.out.meta["val"].shape), attention_source.result_order(graph, item)
    value = item.out.meta["val"]
    with value.fake_mode:
        like = torch.empty([shape[i] for i in order], dtype=value.dtype, device=value.device)
        like = like.permute([order.index(i) for i in range(len(shape))])
    call = graph.call_generated(kernel, inputs, like=like, before=item.out, name="attended")
    graph.replace(item.out, call)
    return None


def _call_library(graph: Graph, item: Attention) -> None:
    k = graph.call(aten.transpose.int, (item.k, -2, -1), before=item.out) if item.k_transposed else item.k
    call = graph.call(
        aten.scaled_dot_product_attention.default,
        (item.q, k, item.v, None, 0.0, item.end is not None),
        {"scale": factor(item)},
        before=item.out,
        name="attended",
    )
    if item.out.meta["val"].is_contiguous():  # the library may lay its result out as it lays out queries
        call = graph.call(aten.contiguous.default, (call,), before=item.out, name="mixed")
    graph.replace(item.out, call)
