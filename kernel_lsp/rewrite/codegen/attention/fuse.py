"""Attention as a rewrite: what it is worth, its parameters and proofs, and the launch in the graph.

What counts as attention is attention.py's. Every rate is one of an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.attention import library
from kernel_lsp.rewrite.codegen.attention import source as attention_source
from kernel_lsp.rewrite.codegen.attention.axes import PRODUCTS
from kernel_lsp.rewrite.codegen.attention.canonical import canonicalize
from kernel_lsp.rewrite.codegen.attention.match import LIBRARY, Attention, find
from kernel_lsp.rewrite.codegen.attention.roles import spine_of
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.regions import chain, cost
from kernel_lsp.rewrite.cost import operations as base_cost
from kernel_lsp.rewrite.generated import GUARDED, Match
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
FLOPS = {torch.float32: 55e12, torch.bfloat16: 280e12, torch.float16: 280e12}
"""What the kernel reaches (H200, 2026-11-21, heads of 64: 26 GFLOP in 0.46 and 0.09 ms)."""
LIBRARY_FLOPS = {torch.float32: 32e12, torch.bfloat16: 390e12, torch.float16: 390e12}
"""What the library reaches (0.80 and 0.066 ms)."""
MASKED_SHARE = 0.5
"""Of that, with numbers that are added to the scores; assumed, not measured."""
EAGER_FLOPS = {torch.float32: 45e12, torch.bfloat16: 450e12, torch.float16: 450e12}
FEW_QUERIES = 16
"""Below, eager multiplies matrices by vectors: it reads keys and values at 0.35 of copy speed."""
MIN_SAVING = 0.1


def matches(graph: Graph) -> list[Match]:
    """Attention written out by hand or called from the library, as far as a kernel is worth it."""
    twin = _Twin(graph)
    products = [node for node in graph.nodes if op_name(node) in PRODUCTS]
    calls = [node for node in graph.nodes if op_name(node) == LIBRARY]
    found = [match for node in products for match in _by_person(graph, node, twin)]
    found += [match for node in calls for match in _of_library(graph, node, twin)]
    return found


class _Twin:
    """A copy of the graph in which one attention after the other is spelled plainly; made when
    needed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: Graph | None = None

    def item(
        self, node: fx.Node, spell: Callable[[Graph, fx.Node], fx.Node | None]
    ) -> Attention | None:
        """The attention that `spell` writes into a copy of the graph; None where it writes none."""
        made = self.made or self.graph.copy()
        self.made = None
        try:
            out = spell(made, made.named(node.name))
        except RewriteError:  # a view that these strides refuse: the copy is half written
            return None
        self.made = made
        return None if out is None else find(made, out)


def _by_person(graph: Graph, node: fx.Node, twin: _Twin) -> list[Match]:
    """Of attention that ends in this product, in whatever spelling."""
    if (plain := find(graph, node)) is not None:
        return _matches(graph, plain, plain.nodes)
    spine = spine_of(graph, node)
    item = twin.item(node, canonicalize) if spine is not None else None
    return _matches(graph, item, spine.nodes) if spine is not None and item is not None else []


def _of_library(graph: Graph, node: fx.Node, twin: _Twin) -> list[Match]:
    slow, masked = library.is_slow(node), library.may_be_causal(node)
    item = twin.item(node, library.by_hand) if slow or masked else None
    found = [_shared_match(graph, node)] if library.is_repeated(node) else []
    if item is not None and slow and item.sizes[-2] >= FEW_QUERIES:
        found.append(_call_match(graph, node, item))
    if item is not None and masked and item.end is not None and library.means(item):
        found.append(_causal_match(graph, node, item))
    return found


def _call_match(graph: Graph, node: fx.Node, item: Attention) -> Match:
    flops = (
        2.0 * math.prod(item.sizes) * sum(item.head_sizes) * (0.6 if item.end is not None else 1.0)
    )
    library_s, own_s = (
        flops / rate[item.dtype] + cost.TRITON_OVERHEAD_S for rate in (LIBRARY_FLOPS, FLOPS)
    )
    others = sum(cost.eager_seconds(graph, other) for other in graph.nodes if other is not node)
    worth = own_s < library_s * (1.0 - MIN_SAVING)
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary=f"compute {_kind(item)} on tensor cores with float32's error",
        benefit=round((library_s - own_s) / (library_s + others), 4) if worth else 0.0,
        plain=False,
        data=_data(item, node, library=False),
    )


def _data(item: Attention, out: fx.Node, library: bool) -> dict[str, Any]:
    """What proofs and `apply` know a match by: its second product in the program, and what was
    seen there."""
    own = {} if library else parameters(item)
    facts = {"end": item.end, "softmax": item.softmax is not None}
    return {"out": out.name, "library": library, "parameters": own, **facts}


def _causal_match(graph: Graph, node: fx.Node, item: Attention) -> Match:
    """The library's own causal attention, where the mask that it is given is just that."""
    flops = 2.0 * math.prod(item.sizes) * sum(item.head_sizes)
    rates = base_cost.rates(graph)
    read_s = base_cost.moved_bytes_of(graph, argument(node, "attn_mask")) / rates.bytes_per_s
    saved_s = 0.4 * flops / LIBRARY_FLOPS[item.dtype] + read_s
    seconds = sum(cost.eager_seconds(graph, other) for other in graph.nodes)
    return Match(
        nodes=(node,),
        label=f"{graph.label(node)}+causal",
        summary="let the library's attention skip what its mask hides",
        benefit=round(min(0.9, saved_s / (seconds + saved_s)), 4),
        data=_data(item, node, library=True),
    )


def _shared_match(graph: Graph, node: fx.Node) -> Match:
    """The library without copies of keys and values for each head of a group."""
    copies = sum(base_cost.moved_bytes_of(graph, arg) for arg in node.args[1:3])
    saved_s = copies / base_cost.rates(graph).bytes_per_s
    seconds = sum(cost.eager_seconds(graph, other) for other in graph.nodes)
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary="let the library's attention read keys and values once for each group of heads",
        benefit=round(min(0.9, saved_s / (seconds + saved_s)), 4),
        data={"out": node.name, "shared": True, "library": True, "parameters": {}},
    )


def _matches(graph: Graph, item: Attention, nodes: tuple[fx.Node, ...]) -> list[Match]:
    """``nodes`` are the program's own; the last one is its second product."""
    own = Match(
        nodes=nodes,
        label=graph.label(*nodes),
        summary=f"compute {_kind(item)} tile by tile, without writing the scores",
        benefit=_benefit(graph, item, nodes, FLOPS[item.dtype]),
        plain=False,
        data=_data(item, nodes[-1], library=False),
    )
    masked = not library.means(item)
    if masked and library.added_mask(graph, item) is None:
        return [own]
    many = item.sizes[-2] >= FEW_QUERIES
    rate = LIBRARY_FLOPS[item.dtype] * (MASKED_SHARE if masked else 1.0)
    called = Match(
        nodes=nodes,
        label=graph.label(nodes[0], nodes[-1]),
        summary=f"call the library's attention for {_kind(item)}",
        benefit=_benefit(graph, item, nodes, rate) if many else 0.0,
        data=_data(item, nodes[-1], library=True),
    )
    return [own, called]


def _kind(item: Attention) -> str:
    causal = "causal " if item.end is not None else ""
    return f"{causal}{'' if item.softmax is not None else 'softmax-free '}attention"


def _benefit(
    graph: Graph, item: Attention, nodes: tuple[fx.Node, ...], flops_per_s: float
) -> float:
    rates = base_cost.rates(graph)
    head, value = item.head_sizes
    points = math.prod(item.sizes)
    flops = 2.0 * points * (head + value)
    moved = points * item.scores.meta["val"].element_size()
    passes = 2 + 2 * (len(chain.real(item.chain)) + (item.softmax is not None))
    few = item.sizes[-2] < FEW_QUERIES
    operands = sum(base_cost.moved_bytes_of(graph, node) for node in (item.k, item.v)) * item.group
    products_s = max(
        flops / EAGER_FLOPS[item.dtype], operands / ((0.35 if few else 1.0) * rates.bytes_per_s)
    )
    eager_s = products_s + passes * moved / rates.bytes_per_s
    block = parameters(item)["BLOCK_QUERIES"][0]
    tiles = -(-item.sizes[-2] // block) * block / item.sizes[-2]
    seen = tiles * (0.6 if item.end is not None else 1.0)
    tensors = sum(
        base_cost.moved_bytes_of(graph, node) for node in (item.q, item.k, item.v, item.out)
    )
    fused_s = max(flops * seen / flops_per_s, tensors / rates.bytes_per_s) + cost.TRITON_OVERHEAD_S
    if fused_s > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    others = sum(cost.eager_seconds(graph, node) for node in graph.nodes if node not in set(nodes))
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


def _find_attention(graph: Graph, match: Match) -> Attention | None:
    """The match's attention; a call of the library is spelled out in the graph first."""
    node = graph.named(match.data["out"])
    if op_name(node) != LIBRARY:
        if (item := find(graph, node)) is not None:
            return item
        out = canonicalize(graph, node)
        return None if out is None else find(graph, out)
    item = find(graph, library.by_hand(graph, node))
    return None if item is None else replace(item, as_library=True)


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    if match.data.get("shared"):
        claim = "a run of heads has the same keys and values"
        return [Proof(claim=claim, holds=True, because="this call repeats each of them as a run")]
    end, softmax = match.data["end"], match.data["softmax"]
    over = "softmax runs over the keys" if softmax else "no softmax between the products"
    found = [
        Proof(claim=over, holds=True, because="its dimension is that of the keys in both products"),
        Proof(claim="nobody else reads the scores or the "
                    "weights", holds=True, because="the graph's edges"),
        Proof(
            claim="no gradient is lost", holds=True,
            because="the library differentiates its own attention" if match.data["library"]
            else GUARDED,
        ),
    ]  # fmt: skip
    if end is not None:
        why = "the mask is a triangle made in this call"
        found.append(
            Proof(claim=f"keys from query + {end} on have no weight", holds=True, because=why)
        )
    return found


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Put the launch of a kernel in the place of the match. Raises RewriteError where it is no
    longer there."""
    if match.data.get("shared"):
        return library.share(graph, graph.named(match.data["out"]))
    item = _find_attention(graph, match)
    if item is None:
        raise RewriteError(
            f"{match.label} is no longer an attention", "apply it before what changes its parts"
        )
    if item.end is not None:
        graph.caveat("an infinite or NaN value at a hidden key no longer reaches the result")
    graph.caveat("softmax is computed online: sums run in another order")
    if match.data["library"]:
        return library.call(graph, item)
    defaults = {name: choices[0] for name, choices in parameters(item).items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    name = launching.unique_name(
        graph, "flash_attention" if item.softmax is not None else "fused_attention"
    )
    kernel, inputs = attention_source.emit(graph, item, {**defaults, **known}, name)
    shape, order = tuple(item.out.meta["val"].shape), attention_source.result_order(graph, item)
    value = item.out.meta["val"]
    with value.fake_mode:
        like = torch.empty([shape[i] for i in order], dtype=value.dtype, device=value.device)
        like = like.permute([order.index(i) for i in range(len(shape))])
    call = graph.call_generated(kernel, inputs, like=like, before=item.out, name="attended")
    graph.replace(item.out, call)
    return None
