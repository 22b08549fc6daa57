"""Tensors that a program reads slice by slice, in order: what a loop over time walks through.

`walks_of(graph, order) -> list[Reading]`. Dimension and direction are numbers of a `SliceWalk`:
`x[:, t]`, `x.unbind(1)[t]`, `x.transpose(0, 1)[t]` and `x.flip(1)[:, T - 1 - t]` are the same
slice of the same `x`, so that a loop reads `x` itself, and the transposed, turned or copied tensor
is needed no more. Not covered: every second slice, slices of more than one step (`x[:, t : t +
2]`)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
MIN_STEPS = 4
Slice: TypeAlias = tuple[fx.Node, int, int]
"""A tensor, one of its dimensions, and an index there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceWalk:
    """``slices[step]`` are the nodes that are slice ``indices[step]`` of ``base`` along ``dim``."""

    base: fx.Node
    dim: int
    indices: range
    slices: tuple[tuple[fx.Node, ...], ...]

    @property
    def is_whole(self) -> bool:
        """Whether every slice of the tensor is read."""
        return len(self.indices) == self.base.meta["val"].shape[self.dim]

    @property
    def is_backward(self) -> bool:
        """Whether the last slice is read first."""
        return self.indices.step < 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkReading:
    """A walk as one operation of every step reads it, each as far behind the one before."""

    walk: SliceWalk
    starts: tuple[int, ...]
    """Where that operation stands in the order, step by step."""

    @property
    def size(self) -> int:
        """Operations of a step."""
        return self.starts[1] - self.starts[0]

    def part(self, first: int, last: int) -> WalkReading:
        """The reading of some of the steps."""
        walk, some = self.walk, slice(first, last)
        walk = replace(walk, indices=walk.indices[some], slices=walk.slices[some])
        return WalkReading(walk=walk, starts=self.starts[some])


def walks_of(graph: Graph, order: Sequence[fx.Node]) -> list[WalkReading]:
    """The walks through tensors, in the order in which they begin; a tensor that a step reads
    several times is there as often."""
    position = {node: index for index, node in enumerate(order)}
    slices: dict[tuple[fx.Node, int], dict[int, list[fx.Node]]] = {}
    for node in graph.nodes:
        if (found := slice_of(graph, node)) is not None:
            slices.setdefault(found[:2], {}).setdefault(found[2], []).append(node)
    made = []
    for (base, dim), nodes in slices.items():
        if len(nodes) < MIN_STEPS:
            continue
        reads = {
            t: {position[u] for n in same for u in n.users if u in position}
            for t, same in nodes.items()
        }
        for indices, starts in _progressions(reads):
            walk = SliceWalk(
                base=base, dim=dim, indices=indices, slices=tuple(tuple(nodes[t]) for t in indices)
            )
            made.append(WalkReading(walk=walk, starts=starts))
    return sorted(made, key=lambda reading: reading.starts)


def _progressions(reads: Mapping[int, set[int]]) -> Iterator[tuple[range, tuple[int, ...]]]:
    """Neighboring indices, upwards or downwards, whose readers are equally far apart: as long as
    possible."""
    for turn in (1, -1):
        for first, at in ((t, p) for t in reads for p in reads[t]):
            for size in sorted(p - at for p in reads.get(first + turn, ()) if p > at):
                if at - size in reads.get(first - turn, ()):
                    continue
                steps = 2
                while at + steps * size in reads.get(first + steps * turn, ()):
                    steps += 1
                if steps >= MIN_STEPS:
                    indices = range(first, first + steps * turn, turn)
                    yield indices, tuple(at + step * size for step in range(steps))


# --- which slice a node is ---------------------------------------------------------------


def slice_of(graph: Graph, node: fx.Node) -> Slice | None:
    """The tensor behind transposes, flips and copies of which the node is one slice, and which
    one."""
    if node.target is operator.getitem and is_op(node.args[0], aten.unbind):
        base, dim, index = node.args[0].args[0], argument(node.args[0], "dim", 0), node.args[1]
    elif is_op(node, aten.select) and isinstance(node.args[2], int):
        base, dim, index = node.args
    else:
        return None
    value = graph.val(base)
    found: Slice | None = (base, dim % value.dim(), index % value.shape[dim])
    while found is not None:
        known, found = found, _behind(graph, *found)
    return known


def _behind(graph: Graph, node: fx.Node, dim: int, index: int) -> Slice | None:
    """The same slice of the tensor that the node is made of."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    base = node.args[0]
    if is_op(node, aten.contiguous, aten.clone):
        return base, dim, index
    rank, size = graph.val(node).dim(), graph.val(node).shape[dim]
    if is_op(node, aten.flip):
        turned = [d % rank for d in node.args[1]] == [dim]
        return (base, dim, size - 1 - index) if turned else None
    if is_op(node, aten.slice):
        return _read_slice(graph, node, dim, index)
    order = _permutation(node, rank)
    if order is None or (rest := [d for d in order if d != order[dim]]) != sorted(rest):
        return None  # a slice has its dimensions in another order
    return base, order[dim], index


def _read_slice(graph: Graph, node: fx.Node, dim: int, index: int) -> Slice | None:
    base, along = node.args[0], argument(node, "dim", 0)
    size, start = graph.val(base).shape[dim], argument(node, "start") or 0
    if along % graph.val(base).dim() != dim or argument(node, "step", 1) != 1:
        return None
    return base, dim, index + min(start if start >= 0 else max(start + size, 0), size)


def _permutation(node: fx.Node, rank: int) -> list[int] | None:
    """For each dimension of a transposed tensor, the one that it was."""
    order = list(range(rank))
    if is_op(node, aten.permute):
        return [d % rank for d in node.args[1]]
    if is_op(node, aten.transpose, aten.swapaxes, aten.swapdims, aten.t, aten.numpy_T, aten.mT):
        whole = is_op(node, aten.t, aten.numpy_T)
        if whole and rank != 2:
            return None
        left, right = (-2, -1) if whole or is_op(node, aten.mT) else node.args[1:3]
        order[left % rank], order[right % rank] = order[right % rank], order[left % rank]
        return order
    if is_op(node, aten.movedim, aten.moveaxis) and all(isinstance(d, int) for d in node.args[1:3]):
        source, target = (d % rank for d in node.args[1:3])
        order.remove(source)
        return [*order[:target], source, *order[target:]]
    return None
