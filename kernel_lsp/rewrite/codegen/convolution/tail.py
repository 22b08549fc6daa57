"""Which operations after a convolution can run while its result is still in registers.

A tail is a chain of stages: operations on the tile (pixels x channels), reductions over all
channels, one pooling over windows that do not overlap, one reduction over all pixels at the very
end. Only the last result leaves the kernel, so the chain ends before a value that somebody else
reads as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.convolution.facts import Conv, FusedPool, pool_of
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, argument_nodes, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.codegen.regions.grow import convex
from kernel_lsp.rewrite.graph import Graph, argument

CHANNEL = ("sum", "mean", "amax", "amin", "max", "min", "logsumexp", "softmax", "log_softmax")
SPATIAL = {"sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin",
           "adaptive_avg_pool1d": "mean",
           "adaptive_avg_pool2d": "mean", "adaptive_avg_pool3d": "mean"}  # fmt: skip
MAX_TAIL_NODES = 16
"""Nodes of a tail; a longer kernel is no longer read by anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The operations that join the convolution's kernel."""

    nodes: tuple[fx.Node, ...]
    """In graph order, without the convolution; the last one is the result. May be empty."""
    roles: dict[fx.Node, str]
    """``point``, ``channel``, ``pool``, ``spatial`` or ``same``."""
    operands: dict[fx.Node, str]
    """Tensor read from outside -> ``channel``, ``element`` or ``scalar``."""
    pool: FusedPool | None = None
    """Windows of all pooling nodes together."""

    @property
    def all_channels(self) -> bool:
        """One tile must hold every channel."""
        return "channel" in self.roles.values()

    @property
    def spatial(self) -> fx.Node | None:
        """The operation that reduces the spatial dimensions; None: none does."""
        return next((node for node in self.nodes if self.roles[node] == "spatial"), None)

    @property
    def work(self) -> list[fx.Node]:
        """The operations that compute something: all but those that leave values as they are."""
        return [node for node in self.nodes if self.roles[node] != "same"]


def tail_of(graph: Graph, conv: Conv, *, channels: bool = True) -> Tail:
    """The longest chain with one result; ``channels``: reductions over channels may be part of
    it."""
    walk = _TailWalk(conv, channels)
    chain: list[fx.Node] = []
    after = False
    for node in graph.nodes:
        after = after or node is conv.node
        if after and walk.takes(node):
            chain.append(node)
    for end in range(min(len(chain), MAX_TAIL_NODES), 0, -1):
        nodes = chain[:end]
        if _is_closed(graph, conv, nodes):
            return walk.tail(nodes)
    return walk.tail([])


def _is_closed(graph: Graph, conv: Conv, nodes: list[fx.Node]) -> bool:
    """Only the last node is read outside, and everything else it needs exists before the
    convolution's own place in the graph or at least before the last node."""
    inside = {conv.node, *nodes}
    private = all(
        not graph.is_output(node) and all(user in inside for user in node.users)
        for node in inside
        if node is not nodes[-1]
    )
    value = nodes[-1].meta["val"]
    return (
        private
        and isinstance(value, torch.Tensor)
        and value.dtype in FLOATS
        and convex(graph, inside)
    )


class _TailWalk:
    """Decides for one node after the other whether it can join."""

    def __init__(self, conv: Conv, channels: bool) -> None:
        self.conv, self.channels = conv, channels
        self.roles: dict[fx.Node, str] = {}
        self.operands: dict[fx.Node, str] = {}
        self.sizes: dict[fx.Node, tuple[int, ...]] = {conv.node: conv.out}
        """Member -> the spatial sizes of its tile."""
        self.windows: dict[fx.Node, FusedPool] = {}
        self.ended = False

    def takes(self, node: fx.Node) -> bool:
        """Whether the node joins, as the next one; if so, its role is kept."""
        if node in self.sizes or self.ended:
            return False
        sources = [arg for arg in node.all_input_nodes if arg in self.sizes]
        if not sources:
            return False
        role = self._role(node, sources)
        if role is None:
            return False
        self.roles[node] = role
        self.ended = role == "spatial"
        return True

    def tail(self, nodes: Sequence[fx.Node]) -> Tail:
        """These nodes as a tail, with what they read."""
        read = {arg for node in nodes for arg in node.all_input_nodes}
        pools = [self.windows[node] for node in nodes if node in self.windows]
        return Tail(
            nodes=tuple(nodes),
            roles={node: self.roles[node] for node in nodes},
            operands={node: kind for node, kind in self.operands.items() if node in read},
            pool=_merge_pools(pools),
        )

    def _role(self, node: fx.Node, sources: list[fx.Node]) -> str | None:
        if getattr(node.target, "__name__", "") == "getitem":
            return self._keep(node, sources[0], "same") if node.args[1] == 0 else None
        if pool_of(node) is not None:
            return self._pool(node, sources[0])
        if op_name(node) == "batch_norm":
            return self._batch_norm(node, sources)
        if op_name(node) in (*CHANNEL, *SPATIAL) and not (len(node.all_input_nodes) > 1):
            return self._reduction(node, sources[0])
        return self._point(node, sources) if is_pointwise(node) else None

    def _keep(self, node: fx.Node, source: fx.Node, role: str) -> str:
        self.sizes[node] = self.sizes[source]
        return role

    def _pool(self, node: fx.Node, source: fx.Node) -> str | None:
        """The first pool, or one that directly follows another of its kind: windows multiply."""
        found, size = pool_of(node), self.sizes[source]
        if self.conv.transposed:  # a tile holds pixels of one phase
            return None
        if (
            found is None
            or len(shape_of(source)) != self.conv.rank + 2
            or len(found.window) != len(size)
        ):
            return None
        if self.windows and (source not in self.windows or self.windows[source].kind != found.kind):
            return None
        self.windows[node] = found
        self.sizes[node] = tuple(n // k for n, k in zip(size, found.window, strict=True))
        return "pool"

    def _reduction(self, node: fx.Node, source: fx.Node) -> str | None:
        value = node.meta["val"]
        first = value[0] if isinstance(value, (tuple, list)) else value
        shape = shape_of(source)
        if len(shape) != self.conv.rank + 2 or not first.dtype.is_floating_point:
            return None
        if argument(node, "dtype") not in (None, source.meta["val"].dtype):
            return None
        dims, rest = reduced_dims(node, len(shape)), tuple(range(2, len(shape)))
        if dims == (1,) and op_name(node) in CHANNEL:
            return (
                self._keep(node, source, "channel") if self._spans_channels(node, source) else None
            )
        over_space = op_name(node) in SPATIAL and dims in (rest, (1, *rest))
        if over_space and not self.conv.transposed and shape[1] == self.conv.out_channels:
            return self._keep(node, source, "spatial")
        return None

    def _spans_channels(self, node: fx.Node, source: fx.Node) -> bool:
        """A tile has all channels that are reduced, and the result keeps their dimension."""
        if shape_of(source)[1] != self.conv.out_channels or self.conv.groups != 1:
            return False
        keeps = op_name(node) in ("softmax", "log_softmax") or bool(argument(node, "keepdim"))
        return bool(self.channels) and keeps and _one_result(node)

    def _batch_norm(self, node: fx.Node, sources: list[fx.Node]) -> str | None:
        """In eval mode it is one scale and one shift for each channel."""
        parts = [argument(node, name) for name in ("weight", "bias", "running_mean", "running_var")]
        live = argument(node, "training") or parts[2] is None
        if (
            live
            or sources != [argument(node, "input")]
            or len(shape_of(node)) != self.conv.rank + 2
        ):
            return None
        if shape_of(node)[1] != self.conv.out_channels:
            return None
        found = [part for part in parts if part is not None]
        if any(part.meta["val"].dtype not in FLOATS for part in found):
            return None
        self.operands.update(dict.fromkeys(found, "channel"))
        return self._keep(node, sources[0], "point")

    def _point(self, node: fx.Node, sources: list[fx.Node]) -> str | None:
        if not self._has_shape_of(node, sources):
            return None
        full = (shape_of(node)[0], self.conv.out_channels, *self.sizes[sources[0]])
        read = (arg for _, arg in argument_nodes(node) if arg not in self.sizes)
        kinds = {arg: operand_kind(arg, full) for arg in read}
        known = {arg: self.operands.get(arg, kind) for arg, kind in kinds.items()}
        if None in kinds.values() or known != kinds:
            return None
        if shape_of(node)[1] != self.conv.out_channels and {"channel", "element"} & {
            *kinds.values()
        }:
            return None
        self.operands.update({arg: kind for arg, kind in kinds.items() if kind is not None})
        return self._keep(node, sources[0], "point")

    def _has_shape_of(self, node: fx.Node, sources: list[fx.Node]) -> bool:
        """All are images of one size in the convolution's batch, of its channels or of one."""
        shape, rank = shape_of(node), self.conv.rank
        if len({self.sizes[source] for source in sources}) != 1:
            return False
        if any(len(shape_of(item)) != rank + 2 for item in (node, *sources)):
            return False
        return (
            shape[0] == self.conv.batch
            and shape[2:] == self.sizes[sources[0]]
            and shape[1] in (1, self.conv.out_channels)
        )


def reduced_dims(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The dimensions that the node reduces, none negative; every dimension when it names none."""
    if op_name(node).startswith("adaptive_avg_pool"):
        size = argument(node, "output_size")
        one = set([size] if isinstance(size, int) else size) == {1}
        return tuple(range(2, rank)) if one else ()
    dims = argument(node, "dim")
    if dims is None or dims == []:
        return tuple(range(rank))
    return tuple(sorted(int(d) % rank for d in ([dims] if isinstance(dims, int) else dims)))


def operand_kind(node: fx.Node, full: tuple[int, ...]) -> str | None:
    """How a tensor from outside lies beside the tile; None when it is no such shape."""
    value: Any = node.meta["val"]
    shape = shape_of(node)
    if len(shape) > len(full):
        return None
    wide = (1,) * (len(full) - len(shape)) + shape
    if shape == full:
        return "element" if value.is_contiguous() else None
    if math.prod(shape) == 1:
        return "scalar"
    return "channel" if wide == (1, full[1], *(1,) * (len(full) - 2)) else None


def _one_result(node: fx.Node) -> bool:
    """max and min over a dimension: nobody reads the indices."""
    if not isinstance(node.meta["val"], (tuple, list)):
        return True
    return all(
        getattr(user.target, "__name__", "") == "getitem" and user.args[1] == 0
        for user in node.users
    )


def _merge_pools(pools: list[FusedPool]) -> FusedPool | None:
    if not pools:
        return None
    window = tuple(math.prod(sizes) for sizes in zip(*(pool.window for pool in pools), strict=True))
    return FusedPool(kind=pools[0].kind, window=window)
