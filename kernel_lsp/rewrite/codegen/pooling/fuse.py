"""Pools: which nodes one kernel takes, and when that pays.

Covered: max and average pools in one to three dimensions with stride, padding, dilation,
ceil_mode, count_include_pad and divisor_override, adaptive ones whose windows are all of one size,
with pointwise neighbors on both sides; a maximum over everything becomes `amax`. Not covered:
return_indices, windows of several sizes, more than 64 elements a window, tensors that are not
contiguous. The kernel's text is `source.py`'s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.pooling import source as pooling_source
from kernel_lsp.rewrite.codegen.pooling.site import PoolRegion, Window, locator
from kernel_lsp.rewrite.codegen.regions import chain, cost
from kernel_lsp.rewrite.cost import operations as base_cost
from kernel_lsp.rewrite.generated import GUARDED, Match
from kernel_lsp.rewrite.graph import Graph, argument
from kernel_lsp.rewrite.printing import guard

aten = torch.ops.aten
PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [256, 512, 128], "num_warps": [4, 8]}
MIN_SAVING = 0.1
EAGER_SHARE = {"max": 0.4, "avg": 0.4}
"""Share of copy speed that torch's kernels reach, counting operand and result only (H200,
2026-11-21: 0.29 to
0.47 for max pools in one to three dimensions, 0.15 to 0.43 for average pools)."""
OWN_SHARE = 0.65
"""What the generated kernel reaches: 0.54 where windows overlap in one dimension, up to 0.93."""


def find(graph: Graph, seed: fx.Node) -> PoolRegion | None:
    """None when the node is no pool that is generated."""
    name = op_name(seed)
    kind = "max" if "max_pool" in name else "avg"
    if name not in (f"{kind}_pool{n}d" for n in (1, 2, 3)) and name not in (
        f"adaptive_{kind}_pool{n}d" for n in (1, 2, 3)
    ):
        return None
    x, result = seed.args[0].meta["val"], _values(graph, seed)
    rank = int(name[-2])
    if (
        result is None
        or not result.meta["val"].is_contiguous()
        or x.dtype not in FLOATS
        or x.dim() not in (rank + 1, rank + 2)
        or x.numel() == 0
    ):
        return None
    windows = _adaptive(seed, rank) if name.startswith("adaptive") else _windows(seed, result, rank)
    if windows is None or math.prod(w.size for w in windows) >= 2**30:
        return None
    bare = PoolRegion(
        seed=seed, result=result, kind=kind, windows=windows,
        count_include_pad=bool(argument(seed, "count_include_pad", True)),
        divisor=argument(seed, "divisor_override"),
    )  # fmt: skip
    return _with_neighbors(graph, bare)


def _values(graph: Graph, seed: fx.Node) -> fx.Node | None:
    """The node that holds the pool's values; None when the indices are read too."""
    if isinstance(seed.meta["val"], torch.Tensor):
        return seed
    user = graph.only_user(seed)
    if user is None or getattr(user.target, "__name__", "") != "getitem" or user.args[1] != 0:
        return None
    return user


def _spread(value: Any, rank: int, default: Sequence[int]) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    return [int(n) for n in (value or default)] * (rank if value and len(value) == 1 else 1)


def _windows(seed: fx.Node, result: fx.Node, rank: int) -> tuple[Window, ...] | None:
    kernel = _spread(argument(seed, "kernel_size"), rank, ())
    stride = _spread(argument(seed, "stride"), rank, kernel)
    padding = _spread(argument(seed, "padding"), rank, [0] * rank)
    dilation = _spread(argument(seed, "dilation", 1), rank, [1] * rank)
    sizes, outs = seed.args[0].meta["val"].shape[-rank:], result.meta["val"].shape[-rank:]
    rows = zip(sizes, outs, kernel, stride, padding, dilation, strict=True)
    found = tuple(
        Window(size=int(n), out=int(o), kernel=k, stride=s, padding=p, dilation=d)
        for n, o, k, s, p, d in rows
    )
    return (
        found
        if math.prod(w.kernel for w in found) <= 64 or all(w.out == 1 for w in found)
        else None
    )


def _adaptive(seed: fx.Node, rank: int) -> tuple[Window, ...] | None:
    """Windows of one size lie side by side exactly when the output divides the input."""
    sizes = seed.args[0].meta["val"].shape[-rank:]
    asked = _spread(argument(seed, "output_size"), rank, ())
    if any(
        not isinstance(n, int) or n <= 0 or size % n for n, size in zip(asked, sizes, strict=True)
    ):
        return None
    return tuple(
        Window(size=int(n), out=o, kernel=int(n) // o, stride=int(n) // o, padding=0, dilation=1)
        for n, o in zip(sizes, asked, strict=True)
    )


def _with_neighbors(graph: Graph, bare: PoolRegion) -> PoolRegion | None:
    x = bare.root.meta["val"]
    if bare.everything:
        return bare
    rank = len(bare.windows)
    tail = chain.after(graph, bare.result, locator(tuple(bare.result.meta["val"].shape), rank))
    locate = locator(tuple(x.shape), rank)
    overlapping = any(w.stride < w.kernel for w in bare.windows)
    head = [] if overlapping else chain.before(graph, bare.root, {bare.seed}, locate)
    if (bare.root not in head and locate(bare.root) is None) or bare.taps > 64:
        return None
    return PoolRegion(
        seed=bare.seed, result=bare.result, kind=bare.kind, windows=bare.windows,
        divisor=bare.divisor,
        count_include_pad=bare.count_include_pad, prologue=tuple(head), epilogue=tuple(tail),
    )  # fmt: skip


# --- what it is worth --------------------------------------------------------------------


def matches(graph: Graph) -> list[Match]:
    """Pools with their neighbors, each with what a kernel is estimated to save."""
    found = [find(graph, node) for node in graph.nodes if "_pool" in op_name(node)]
    return [_match(graph, pool) for pool in found if pool is not None]


def _match(graph: Graph, pool: PoolRegion) -> Match:
    plain = pool.everything
    return Match(
        nodes=pool.nodes,
        label=graph.label(*pool.nodes),
        summary=_plain_summary(pool)
        if plain
        else f"compute {op_name(pool.seed)}{pool.beside} in one pass",
        benefit=_benefit(graph, pool),
        plain=plain,
        data={"seed": pool.seed.name, "parameters": {} if plain else PARAMETERS},
    )


def _plain_summary(pool: PoolRegion) -> str:
    return f"reduce with {'amax' if pool.kind == 'max' else 'mean'} instead of {op_name(pool.seed)}"


def _benefit(graph: Graph, pool: PoolRegion) -> float:
    rates = base_cost.rates(graph)
    if pool.everything and pool.kind == "avg":
        return 0.0
    reads, writes = (
        base_cost.moved_bytes_of(graph, pool.root),
        base_cost.moved_bytes_of(graph, pool.result),
    )
    # Adaptive maxima: one thread for a plane.
    share = 0.02 if pool.everything else EAGER_SHARE[pool.kind]
    eager_s = (reads + writes) / (share * rates.bytes_per_s) + rates.overhead_s
    eager_s += sum(cost.eager_seconds(graph, n) for n in (*pool.prologue, *pool.epilogue))
    inside = set(pool.nodes)
    operands = {arg for node in pool.nodes for arg in node.all_input_nodes if arg not in inside}
    moved = sum(
        base_cost.moved_bytes_of(graph, node) for node in operands
    ) + base_cost.moved_bytes_of(graph, pool.last)
    overhead = rates.overhead_s if pool.everything else cost.TRITON_OVERHEAD_S
    fused_s = moved / ((0.9 if pool.everything else OWN_SHARE) * rates.bytes_per_s) + overhead
    if fused_s > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    others = sum(cost.eager_seconds(graph, node) for node in graph.nodes if node not in inside)
    return round((eager_s - fused_s) / (eager_s + others), 4)


# --- applying it -------------------------------------------------------------------------


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    pool = find(graph, graph.named(match.data["seed"]))
    assert pool is not None
    shapes = ", ".join(f"{w.kernel} of {w.size} to {w.out}" for w in pool.windows)
    return [
        Proof(claim="all windows have one size", holds=True, because=f"windows: {shapes}"),
        Proof(claim="nobody reads the indices", holds=True, because="the graph's edges"),
        Proof(
            claim="no gradient is lost", holds=True,
            because=GUARDED,
        ),
    ]  # fmt: skip


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Put a kernel in the place of the pool, `amax` where one window takes all. Raises RewriteError
    where it is no longer there."""
    pool = find(graph, graph.named(match.data["seed"]))
    if pool is None:
        raise RewriteError(
            f"{match.label} is no longer a pool that can be generated", "apply it first"
        )
    if pool.everything:
        return _reduce(graph, pool)
    defaults = {name: choices[0] for name, choices in PARAMETERS.items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    name = launching.unique_name(graph, _name(pool))
    kernel, inputs = pooling_source.emit(graph, pool, {**defaults, **known}, name)
    launching.launch(graph, kernel, inputs, [pool.last], pool.last)
    return None


def _reduce(graph: Graph, pool: PoolRegion) -> None:
    """One window over everything is a reduction, which torch does at copy speed."""
    dims = list(range(-len(pool.windows), 0))
    op = aten.amax.default if pool.kind == "max" else aten.mean.dim
    made = graph.call(op, (pool.root, dims, True), before=pool.result, name="pooled")
    if condition := guard.no_gradients(graph):
        graph.require(
            condition, "amax spreads a gradient among equal maxima, the pool gives it to one"
        )
    graph.replace(pool.result, made)


def _name(pool: PoolRegion) -> str:
    words = [*chain.words(pool.prologue), op_name(pool.seed), *chain.words(pool.epilogue)]
    return ("fused_" if len(words) > 1 else "direct_") + "_".join(dict.fromkeys(words))
