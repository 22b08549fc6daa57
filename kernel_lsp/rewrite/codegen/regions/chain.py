"""Pointwise neighbors of an operation that has a kernel of its own: a scan, a pool, attention
scores.

`after` and `before` find them, `PointwiseChain` turns them into values of the expression IR. The
kernel's own generator says where an operand lies (`locate`) and renders its loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, load, topological
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, argument_nodes, dtype_name, op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise, value_of
from kernel_lsp.rewrite.codegen.regions.grow import convex
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.graph import Graph

MAX_NODES = 16
"""On each side; a longer kernel is no longer read by anybody."""

Locate: TypeAlias = Callable[[fx.Node], "tuple[int, ...] | None"]
"""Axes of the kernel along which an operand varies; None when the kernel cannot address it."""


def fuses(node: fx.Node, shape: Sequence[int]) -> bool:
    """A pointwise node of exactly this shape, laid out as kernels write: contiguous."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != tuple(shape):
        return False
    return value.is_contiguous() and is_pointwise(node)


def after(graph: Graph, seed: fx.Node, locate: Locate) -> list[fx.Node]:
    """Pointwise readers of the seed, as far as just one result leaves the group; graph order."""
    shape = seed.meta["val"].shape
    inside = {seed}
    changed = True
    while changed and len(inside) <= MAX_NODES:
        changed = False
        for node in graph.nodes:
            near = node not in inside and any(arg in inside for arg in node.all_input_nodes)
            if near and _joins(graph, node, inside, shape, locate):
                inside.add(node)
                changed = True
                break
    return _single_result(graph, inside)


def _joins(
    graph: Graph, node: fx.Node, inside: set[fx.Node], shape: Sequence[int], locate: Locate
) -> bool:
    if not fuses(node, shape) or not node.meta["val"].dtype.is_floating_point:
        return False
    others = [arg for _, arg in argument_nodes(node) if arg not in inside]
    return all(locate(arg) is not None for arg in others) and convex(graph, {*inside, node})


def _single_result(graph: Graph, inside: set[fx.Node]) -> list[fx.Node]:
    order = graph.ordered(inside)
    while len(order) > 1:
        results = [n for n in order if graph.is_output(n) or any(u not in order for u in n.users)]
        if results == [order[-1]] and not is_identity(order[-1]):
            break
        order.pop()
    return order[1:]


def before(
    graph: Graph, root: fx.Node, readers: Iterable[fx.Node], locate: Locate
) -> list[fx.Node]:
    """Pointwise producers of ``root``, itself included, that only ``readers`` and they themselves
    read."""
    banned: set[fx.Node] = set()
    while True:
        group = _producers(graph, root, set(readers), banned)
        odd = {
            n for n in group for _, a in argument_nodes(n) if a not in group and locate(a) is None
        }
        if not odd:
            return graph.ordered(group)
        banned |= odd


def _producers(
    graph: Graph, root: fx.Node, readers: set[fx.Node], banned: set[fx.Node]
) -> set[fx.Node]:
    shape = root.meta["val"].shape
    group: set[fx.Node] = set()
    todo = [root]
    while todo and len(group) < MAX_NODES:
        node = todo.pop()
        private = not graph.is_output(node) and all(u in group or u in readers for u in node.users)
        if node in group or node in banned or not private or not fuses(node, shape):
            continue
        group.add(node)
        todo += node.all_input_nodes
    return group


def real(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Nodes that do work."""
    return [node for node in nodes if not is_identity(node)]


def words(nodes: Iterable[fx.Node]) -> list[str]:
    """Their operations, for names and for people; those that do no work are left out."""
    return [op_name(node).strip("_") for node in real(nodes)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surrounded:
    """An operation with a kernel of its own, and the neighbors on both sides that join it."""

    seed: fx.Node
    """The operation."""
    result: fx.Node
    """The node that is its value: the seed, or what merely hands it on."""
    prologue: tuple[fx.Node, ...] = ()
    epilogue: tuple[fx.Node, ...] = ()

    @property
    def last(self) -> fx.Node:
        """The kernel's result stands for it."""
        return self.epilogue[-1] if self.epilogue else self.result

    @property
    def beside(self) -> str:
        """The neighbors, as the end of a sentence."""
        found = words([*self.prologue, *self.epilogue])
        return f" with {', '.join(found)}" if found else ""


@dataclass(kw_only=True)
class PointwiseChain:
    """The values of some nodes; operands are collected in the order of their first use."""

    graph: Graph
    inside: set[fx.Node]
    names: UniqueNames
    locate: Locate
    known: dict[fx.Node, Any] = field(default_factory=dict)
    operands: dict[fx.Node, Operand] = field(default_factory=dict)

    def seed(self, node: fx.Node, hint: str, dtype: str = "float32") -> Value:
        """A value that the kernel computes itself; preset its variable in ``Body.known``."""
        self.known[node] = Value(op="seed", dtype=dtype, hint=hint)
        return self.known[node]

    def value(self, node: fx.Node) -> Any:
        """What the node's value is made of: a computation for a node of the chain, a load for
        others. Raises Unsupported."""
        if node not in self.known:
            self.known[node] = (
                self._named(node) if node in self.inside else load(self.operand(node))
            )
        return self.known[node]

    def _named(self, node: fx.Node) -> Any:
        """The value under the name that the person gave it."""
        made = value_of(node, self.value)
        if not isinstance(made, Value) or made.operand is not None or made in self.known.values():
            return made
        return replace(made, hint=self.graph.variable(node))

    def operand(self, node: fx.Node) -> Operand:
        """The operand from which the node's value is loaded, the same each time. Raises Unsupported
        where it cannot be addressed."""
        if node not in self.operands:
            axes = self.locate(node)
            if axes is None:
                raise Unsupported(f"{node.name} cannot be addressed")
            dtype = dtype_name(node.meta["val"].dtype)
            self.operands[node] = Operand(
                name=self.names.fresh(self._name(node)), dtype=dtype, axes=axes
            )
        return self.operands[node]

    def _name(self, node: fx.Node) -> str:
        base = node
        while op_name(base) in ("unsqueeze", "view", "reshape", "expand"):
            base = base.args[0]
        path = self.graph.state.get(base)
        return path.split(".")[-1] if path else node.name


def grouped_axes(
    sizes: Sequence[int], groups: Sequence[Sequence[int]], node: fx.Node
) -> tuple[int, ...] | None:
    """Which runs of dimensions a contiguous operand varies along: wholly or not at all, else None.

    ``groups`` are runs of the dimensions of ``sizes``; sizes of 1 belong to either.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() > len(sizes):
        return None
    own = (1,) * (len(sizes) - value.dim()) + tuple(value.shape)
    found = []
    for index, group in enumerate(groups):
        wide = [axis for axis in group if sizes[axis] != 1]
        if all(own[axis] == 1 for axis in wide):
            continue
        if any(own[axis] != sizes[axis] for axis in wide):
            return None
        found.append(index)
    if any(own[axis] != 1 for axis in range(len(sizes)) if sizes[axis] == 1):
        return None
    return tuple(found) if value.is_contiguous() else None


def numbers(values: Iterable[Any]) -> tuple[float, ...]:
    """Numbers of the program that these are computed with."""
    every = topological(value for value in values if isinstance(value, Value))
    found = [arg for value in every for arg in value.args if isinstance(arg, (int, float))]
    return tuple(float(arg) for arg in found if not isinstance(arg, bool))
