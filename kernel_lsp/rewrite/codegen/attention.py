"""Attention written by hand: products, a chain of pointwise operations, softmax or none, products.

Covered: ``softmax(chain(q @ k^T)) @ v`` and ``chain(q @ k^T) @ v`` of rank 3 and 4 with any strides,
float32, bfloat16 and float16; the chain may scale, add biases, fill by masks of any broadcastable shape;
keys and values that are repeated for groups of query heads are read once; triangles built from ones are
computed, not read, and what they hide is skipped; a float32 call of the library without a mask is spelled
out first. Not covered: dropout in train mode, operations between softmax and the second product, einsum,
scores that somebody else reads. The kernel's text is `attention_source.py`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite import cost as base_cost
from kernel_lsp.rewrite.codegen import attention_source, chain, cost
from kernel_lsp.rewrite.codegen.lower import is_identity
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, WHOLE, argument_nodes, is_pointwise, op_name
from kernel_lsp.rewrite.codegen.source import next_power_of_two
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
PRODUCTS = ("matmul", "bmm")
SOFTMAX = ("softmax", "_softmax")
LIBRARY = "scaled_dot_product_attention"
LARGEST_HEAD = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}
FLOPS = {torch.float32: 55e12, torch.bfloat16: 280e12, torch.float16: 280e12}
"""What the kernel reaches (H200, 2026-11-21, heads of 64: 26 GFLOP in 0.46 and 0.09 ms)."""
LIBRARY_FLOPS = {torch.float32: 32e12, torch.bfloat16: 390e12, torch.float16: 390e12}
"""What the library reaches (0.80 and 0.066 ms)."""
EAGER_FLOPS = {torch.float32: 45e12, torch.bfloat16: 450e12, torch.float16: 450e12}
FEW_QUERIES = 16
"""Below, eager multiplies matrices by vectors: it reads keys and values at 0.35 of copy speed."""
MIN_SAVING = 0.1


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
    triangles: dict[fx.Node, tuple[int, bool]]
    """Node of ones -> (d, upper): true where key >= query + d (upper), or else where key < query + d."""
    end: int | None
    """Keys from query + end on have no weight; None when none are known."""

    as_library: bool = False
    """Stands for a call of the library, whose result has heads inside queries (on CUDA, float32)."""

    @property
    def root(self) -> fx.Node:
        return self.chain[-1] if self.chain else self.scores

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        return (self.scores, *self.chain, *self.weights, self.out)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.scores.meta["val"].shape)

    @property
    def head_sizes(self) -> tuple[int, int]:
        return int(self.q.meta["val"].shape[-1]), int(self.v.meta["val"].shape[-1])

    @property
    def dtype(self) -> torch.dtype:
        return self.q.meta["val"].dtype


def find(graph: Graph, out: fx.Node) -> Attention | None:
    """The attention that ends in this product; None when it is none, or of another kind."""
    if op_name(out) not in PRODUCTS or not _shaped(out):
        return None
    weights, node = [], out.args[0]
    while is_identity(node) and is_pointwise(node) and graph.only_user(node) is not None:
        weights.append(node)
        node = node.args[0]
    softmax = node if op_name(node) in SOFTMAX else None
    if softmax is not None:
        if not _last_dimension(softmax) or graph.only_user(softmax) is None:
            return None
        weights.append(softmax)
        root, readers = softmax.args[0], {softmax}
    else:
        root, readers, weights = out.args[0], {out}, []
    found = _chain(graph, root, readers)
    if found is None or (softmax is None and not _bends(found[1])):
        return None
    return _whole(graph, out, softmax, found, tuple(reversed(weights)))


def _shaped(out: fx.Node) -> bool:
    left, right = (arg.meta["val"] for arg in out.args)
    same = left.dim() == right.dim() and left.dim() in (3, 4) and left.shape[:-2] == right.shape[:-2]
    return bool(same and left.dtype == right.dtype and left.dtype in FLOATS and left.numel() > 0)


def _last_dimension(softmax: fx.Node) -> bool:
    rank = softmax.meta["val"].dim()
    same = softmax.meta["val"].dtype == softmax.args[0].meta["val"].dtype
    return int(argument(softmax, "dim")) % rank == rank - 1 and same


def _chain(graph: Graph, root: fx.Node, readers: set[fx.Node]) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The first product and the pointwise operations from it to ``root``."""
    nodes = chain.before(graph, root, readers, locate_in(tuple(root.meta["val"].shape)))
    inside = set(nodes)
    outer = [root] if not nodes else [a for n in nodes for _, a in argument_nodes(n) if a not in inside]
    products = list(dict.fromkeys(a for a in outer if op_name(a) in PRODUCTS and _shaped(a)))
    scores = [
        p
        for p in products
        if _private(graph, p, inside | readers) and p.meta["val"].shape == root.meta["val"].shape
    ]
    if len(scores) != 1 or any(
        n.meta["val"].dtype != root.meta["val"].dtype for n in _spine(nodes, scores[0])
    ):
        return None
    return scores[0], tuple(nodes)


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
    softmax: fx.Node | None,
    found: tuple[fx.Node, tuple[fx.Node, ...]],
    weights: tuple[fx.Node, ...],
) -> Attention | None:
    scores, nodes = found
    q, keys = scores.args[0], scores.args[1]
    flipped = op_name(keys) in ("transpose", "mT") and _swaps_last(keys)
    k, group_k = _repeated(keys.args[0] if flipped else keys)
    v, group_v = _repeated(out.args[1])
    if group_k != group_v or scores.meta["val"].dtype != q.meta["val"].dtype:
        return None
    if max(q.meta["val"].shape[-1], v.meta["val"].shape[-1]) > LARGEST_HEAD[q.meta["val"].dtype]:
        return None
    masks = {n for node in nodes for _, n in argument_nodes(node)}
    # A row of ones that is broadcast over queries is no triangle over them.
    square = {n for n in masks if n.meta["val"].shape[-2:] == scores.meta["val"].shape[-2:]}
    triangles = {n: t for n in nodes_in(graph, square) if (t := _triangle(graph, n))}
    end = _end(nodes[-1] if nodes else scores, triangles, softmax is not None)
    return Attention(
        out=out, scores=scores, softmax=softmax, chain=nodes, weights=weights, q=q, k=k,
        k_transposed=not flipped, v=v, group=group_k, triangles=triangles, end=end,
    )  # fmt: skip


def nodes_in(graph: Graph, some: set[fx.Node]) -> list[fx.Node]:
    """The nodes in graph order: sets have none, and sources must not change from run to run."""
    return [node for node in graph.nodes if node in some]


def _swaps_last(node: fx.Node) -> bool:
    if op_name(node) == "mT":
        return True
    rank = node.meta["val"].dim()
    return sorted(int(dim) % rank for dim in node.args[1:3]) == [rank - 2, rank - 1]


def _repeated(node: fx.Node) -> tuple[fx.Node, int]:
    """Behind repeat_interleave over heads, or expand and reshape, which give each head to a run of others."""
    if op_name(node) == "repeat_interleave" and node.meta["val"].dim() == 4:
        times, dim = argument(node, "repeats"), argument(node, "dim")
        if isinstance(times, int) and dim is not None and int(dim) % 4 == 1:
            return node.args[0], times
    if op_name(node) in ("reshape", "view", "flatten", "_unsafe_view") and op_name(node.args[0]) in (
        "expand",
        "contiguous",
        "clone",
    ):
        return _expanded(node)
    return node, 1


def _expanded(node: fx.Node) -> tuple[fx.Node, int]:
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


# --- triangles ---------------------------------------------------------------------------


def _triangle(graph: Graph, node: fx.Node) -> tuple[int, bool] | None:
    """triu or tril of a matrix of ones, or the negation of one."""
    if op_name(node) in ("bitwise_not", "logical_not"):
        inner = _triangle(graph, node.args[0])
        return (
            None
            if inner is None or node.args[0].meta["val"].dtype != torch.bool
            else (inner[0], not inner[1])
        )
    if op_name(node) in ("unsqueeze", "expand", "alias", "detach") and _same_matrix(node):
        return _triangle(graph, node.args[0])
    if op_name(node) not in ("triu", "tril") or node.meta["val"].dim() != 2:
        return None
    if graph.fact(node.args[0]).const != 1.0:
        return None
    diagonal = int(argument(node, "diagonal", 0))
    return (diagonal, True) if op_name(node) == "triu" else (diagonal + 1, False)


def _same_matrix(node: fx.Node) -> bool:
    """The view has the same last two dimensions, and ones before."""
    shape, base = tuple(node.meta["val"].shape), tuple(node.args[0].meta["val"].shape)
    return shape[-2:] == base[-2:] and len(base) >= 2 and math.prod(shape[:-2]) == 1


def _end(root: fx.Node, triangles: dict[fx.Node, tuple[int, bool]], softmax: bool) -> int | None:
    """The distance from which on the chain yields -inf (0 without softmax) whatever the scores are."""
    later, node = [], root
    while op_name(node) not in ("masked_fill", "where"):
        tensors = argument_nodes(node)
        if len(tensors) != 1 or not chain.fuses(node, root.meta["val"].shape):
            return None
        later.append(node)
        node = tensors[0][1]
    filled = _fills(node, triangles)
    if filled is None:
        return None
    value = torch.tensor(float(filled[1]))
    for step in reversed(later):
        args = [value if isinstance(arg, fx.Node) else arg for arg in step.args]
        value = step.target(*args, **step.kwargs)
    gone = float(value) == (-math.inf if softmax else 0.0)
    # A row without any key is NaN under softmax: the first one must keep a key.
    return filled[0] if gone and (filled[0] >= 1 or not softmax) else None


def _fills(node: fx.Node, triangles: dict[fx.Node, tuple[int, bool]]) -> tuple[int, float] | None:
    """(distance, number) when everything from query + distance on becomes the number."""
    if op_name(node) == "masked_fill":
        mask, number, upper = argument(node, "mask"), argument(node, "value"), True
    else:
        mask, number, upper = argument(node, "condition"), argument(node, "other"), False
    if mask not in triangles or triangles[mask][1] is not upper or not isinstance(number, (int, float)):
        return None
    return triangles[mask][0], float(number)


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


# --- what it is worth --------------------------------------------------------------------


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
    item = find(twin, _by_hand(twin, _named(twin, node.name)))
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
    node = _named(graph, match.data["out"])
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
    name = chain.unique_name(graph, "flash_attention" if item.softmax is not None else "fused_attention")
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


def _named(graph: Graph, name: str) -> fx.Node:
    return next(node for node in graph.nodes if node.name == name)
