"""From nodes of the graph to a region: operands, collapsed dimensions, values, outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.core import strides
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region, Value, apply, load
from kernel_lsp.rewrite.codegen.core.nodes import (
    Unsupported,
    argument_nodes,
    argument_of,
    dtype_name,
    op_name,
)
from kernel_lsp.rewrite.codegen.core.sizes import Sizes, Wide
from kernel_lsp.rewrite.codegen.core.space import (
    LOSSES,
    NORMS,
    SOFTMAX,
    RegionShape,
    keeps_dims,
    shape_of,
    space_of,
)
from kernel_lsp.rewrite.codegen.pointwise import channelwise
from kernel_lsp.rewrite.codegen.pointwise.operations import IDENTITY, TABLE
from kernel_lsp.rewrite.codegen.reduction import operations as reductions
from kernel_lsp.rewrite.graph import Graph, drops, is_op


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredRegion:
    """A region and the nodes that its launcher takes and yields, in the launcher's order."""

    region: Region
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    values: dict[fx.Node, Value] = field(default_factory=dict)
    """What each covered node became, for `wording.worded`."""
    views: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    """Inputs whose dimensions the launcher gets in another order: strides.permuted."""
    order: tuple[int, ...] = ()
    """The dimensions of the results in the order in which they are written; empty for their own."""


NUMBER = RegionShape(sizes=(1,))
"""Where every tensor is a number without dimensions, such as the parts of a loss: one point."""


def lower(
    graph: Graph,
    nodes: Sequence[fx.Node],
    space: RegionShape,
    name: str,
    *,
    any_layout: bool = False,
) -> LoweredRegion:
    """The region that computes the nodes, with the nodes that are its inputs and outputs.
    ``any_layout``: operands may be read by their strides, by rows where these are the last
    dimensions; a pointwise region may also follow transposed results. Raises Unsupported when the
    nodes do not fit the space."""
    is_last = space.reduced[-1:] in ((), (len(space.sizes) - 1,)) and space.groups is None
    return _RegionLowering(graph, nodes, space, any_layout and is_last).run(name)


class _RegionLowering:
    def __init__(
        self, graph: Graph, nodes: Sequence[fx.Node], space: RegionShape, any_layout: bool
    ) -> None:
        self.graph, self.nodes, self.any_layout = graph, list(nodes), any_layout
        self.space = space if space.sizes else NUMBER
        self.order = self._order()
        self.sizes = tuple(self.space.expanded[dim] for dim in self.order)
        self.inside = set(nodes)
        self.squeezed = squeezed_nodes(nodes)
        self.wide: dict[tuple[fx.Node, tuple[int, ...]], Wide] = {}
        for node in self.nodes:
            for key, found in self._outside(node):
                self.wide.setdefault(key, found)
        self.groups = self._collapse()
        self.names = UniqueNames(["out", "partial", "n_rows", "n_cols", "n_chunks", "n_elements"])
        self.operand_names = self._choose_names()
        self.size_names = Sizes(
            space=self.space,
            sizes=self.sizes,
            order=self.order,
            groups=self.groups,
            reduced=self._reduced(),
            wide=tuple(self.wide.values()),
            names=self.operand_names,
            any_layout=self.any_layout,
            squeezed=self.squeezed,
        )
        self.dims = self.size_names.dims()
        self.operands = self._operands()
        self.values: dict[fx.Node, Any] = {}

    def run(self, name: str) -> LoweredRegion:
        """The nodes as a region of this name."""
        outputs = output_nodes(self.graph, self.nodes)
        made, used = [], UniqueNames(["x"])
        for node in outputs:
            value = self.value(node)
            rowwise = self._is_row(node)
            hint = "out" if len(outputs) == 1 else f"{node.name}_out"
            made.append(
                Output(
                    name="out" if len(outputs) == 1 else used.fresh(hint),
                    value=value,
                    dtype=dtype_name(node.meta["val"].dtype),
                    shape=self.size_names.shape_source(node),
                    rowwise=rowwise,
                )
            )
        order = tuple(self.operands.values())
        region = Region(
            name=name, dims=self.dims, outputs=tuple(made), reduced=self._reduced(), order=order
        )
        by_operand = {operand: key[0] for key, operand in self.operands.items()}
        inputs = tuple(by_operand[operand] for operand in region.operands)
        values = {
            k: v for k, v in self.values.items() if isinstance(k, fx.Node) and isinstance(v, Value)
        }
        views = {wide.node: wide.view for wide in self.wide.values() if wide.view}
        turned = () if list(self.order) == sorted(self.order) else self.order
        return LoweredRegion(
            region=region,
            inputs=inputs,
            outputs=tuple(outputs),
            values=values,
            views=views,
            order=turned,
        )

    def _order(self) -> tuple[int, ...]:
        """The dimensions of the space as the region visits them."""
        rank = len(self.space.expanded)
        if not self.any_layout or self.space.reduced:
            return tuple(range(rank))
        return strides.order_of([n.meta["val"] for n in output_nodes(self.graph, self.nodes)], rank)

    # --- values --------------------------------------------------------------------------

    def value(self, node: fx.Node) -> Any:
        """The value of a node, built at its first use."""
        if node not in self.values:
            self.values[node] = self._build(node)
        return self.values[node]

    def _build(self, node: fx.Node) -> Any:
        def get(name: str) -> Any:
            arg = argument_of(node, name)
            if not isinstance(arg, fx.Node):
                return arg
            return self.value(arg) if arg in self.inside else self._load(node, name, arg)

        if _is_unsqueeze(node):
            return self.value(node.args[0])
        if space_of(node) is not None:
            return reductions.build(node, get)
        if channelwise.has_channels(node):
            return channelwise.build(node, get)
        if op_name(node) == "detach" and self.graph.gradients:
            return apply("detach", value := get("self"), dtype=value.dtype, hint=value.hint)
        return TABLE[op_name(node)](node, get)

    def _load(self, user: fx.Node, name: str, node: fx.Node) -> Value:
        key = (node, self._aligned(user, name, node).sizes)
        operand = self.operands[key]
        row = set(operand.axes) <= set(range(len(self.dims))) - set(self._reduced())
        return self._cached(key, lambda: load(operand, rowwise=row and bool(self.space.reduced)))

    def _cached(self, key: Any, make: Callable[[], Value]) -> Value:
        if key not in self.values:
            self.values[key] = make()
        return self.values[key]

    # --- operands ------------------------------------------------------------------------

    def _outside(self, node: fx.Node) -> list[tuple[tuple[fx.Node, tuple[int, ...]], Wide]]:
        found = []
        for name, arg in argument_nodes(node):
            if arg not in self.inside:
                wide = self._aligned(node, name, arg)
                found.append(((arg, wide.sizes), wide))
        return found

    def _aligned(self, user: fx.Node, name: str, node: fx.Node) -> Wide:
        """Where the operand's dimensions lie in the expanded space."""
        sizes, space = shape_of(node), self.space
        index: list[int | None] = list(range(len(sizes)))
        grouped = op_name(user) in NORMS and name in ("weight", "bias") and space.groups is not None
        if grouped or channelwise.per_channel(user, name):
            trailing = len(space.sizes) - 2  # one value for each channel
            sizes, index = (*sizes, *(1,) * trailing), [*index, *(None,) * trailing]
        elif user in self.squeezed and space_of(user) is None:
            full = list(space.reduced)
            kept = len(space.sizes) - len(full)
            sizes, index = (
                (1,) * (kept - len(sizes)) + sizes,
                [*[None] * (kept - len(index)), *index],
            )
            at = full[0] if full else 0
            sizes = (*sizes[:at], *(1,) * len(full), *sizes[at:])
            index = [*index[:at], *(None,) * len(full), *index[at:]]
        missing = len(space.sizes) - len(sizes)
        if missing < 0:
            raise Unsupported(f"{node.name} has more dimensions than the region")
        sizes, index = (1,) * missing + sizes, [*[None] * missing, *index]
        if space.groups is not None:
            many = sizes[1] != 1
            per_group = space.expanded[2]
            split = (space.groups, per_group) if many else (1, 1)
            sizes, index = (
                (sizes[0], *split, *sizes[2:]),
                [index[0], index[1], index[1], *index[2:]],
            )
        if any(n not in (1, whole) for n, whole in zip(sizes, space.expanded, strict=True)):
            raise Unsupported(f"{node.name} does not broadcast to the region")
        return self._turned(Wide(node=node, sizes=sizes, index=tuple(index)))

    def _turned(self, wide: Wide) -> Wide:
        """Its dimensions in the order in which the region visits them."""
        if list(self.order) == sorted(self.order):
            return wide
        sizes = tuple(wide.sizes[dim] for dim in self.order)
        index = tuple(wide.index[dim] for dim in self.order)
        view = strides.own_order(shape_of(wide.node), index)
        if view:
            own = iter(range(len(view)))
            index = tuple(None if dim is None else next(own) for dim in index)
        return Wide(node=wide.node, sizes=sizes, index=index, view=view)

    def _collapse(self) -> list[list[int]]:
        """Adjacent dimensions that every operand treats alike become one; size 1 vanishes."""
        groups: list[list[int]] = []
        for axis, size in enumerate(self.sizes):
            if size == 1:
                continue
            if groups and self._alike(groups[-1][-1], axis):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        if self.space.reduced and not any(
            axis in self.space.reduced for group in groups for axis in group
        ):
            raise Unsupported("a reduction over one element")
        return groups or [[0]]

    def _alike(self, left: int, right: int) -> bool:
        reduced = self.space.reduced
        if (left in reduced) != (right in reduced):
            return False
        return all(
            (wide.sizes[left] != 1) == (wide.sizes[right] != 1)
            and self._mergeable(wide, left, right)
            for wide in self.wide.values()
        )

    def _mergeable(self, wide: Wide, left: int, right: int) -> bool:
        """Always, but for an operand that is read by its strides."""
        own = wide.index[left], wide.index[right]
        if not self.any_layout or wide.sizes != self.sizes or own[0] is None or own[1] is None:
            return True
        return wide.value.is_contiguous() or strides.is_mergeable(wide.value, own[0], own[1])

    def _reduced(self) -> tuple[int, ...]:
        return tuple(i for i, group in enumerate(self.groups) if group[0] in self.space.reduced)

    def _operands(self) -> dict[tuple[fx.Node, tuple[int, ...]], Operand]:
        found = {}
        named: dict[fx.Node, str] = {}
        for key, wide in self.wide.items():
            node = wide.node
            if node in named:
                raise Unsupported(f"{node.name} is read in two different ways")
            named[node] = self.operand_names[node]
            axes = tuple(i for i, group in enumerate(self.groups) if wide.sizes[group[0]] != 1)
            dtype, inner = dtype_name(node.meta["val"].dtype), None
            if len(axes) == len(self.groups) and not wide.value.is_contiguous():
                if not self.any_layout:
                    raise Unsupported(
                        f"{node.name} is not contiguous: copying it first would cost a pass"
                    )
                steps = [wide.value.stride(wide.index[group[-1]]) for group in self.groups]
                inner = min(reversed(range(len(steps))), key=lambda axis: steps[axis])
                if self.space.reduced and inner != len(steps) - 1:
                    raise Unsupported(f"the elements of {node.name}'s rows lie apart")
            found[key] = Operand(name=named[node], dtype=dtype, axes=axes, inner=inner)
        return found

    def _choose_names(self) -> dict[fx.Node, str]:
        chosen = {}
        for node in dict.fromkeys(wide.node for wide in self.wide.values()):
            path = self.graph.state.get(_behind_views(node))
            chosen[node] = self.names.fresh(path.split(".")[-1] if path else self._called(node))
        return chosen

    def _called(self, node: fx.Node) -> str:
        """A part of a chunk by its number, a transposed tensor by its own name."""
        if is_op(node, *strides.TRANSPOSES):
            node = node.args[0]
        return (
            f"{op_name(node.args[0])}_{node.args[1]}"
            if node.target is operator.getitem
            else node.name
        )

    def _is_row(self, node: fx.Node) -> bool:
        if not self.space.reduced:
            return False
        return node in self.squeezed or shape_of(node) != self.space.sizes


def squeezed_nodes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes whose shape lacks the reduced dimensions (reductions with keepdim=False and their
    users)."""
    found: set[fx.Node] = set()
    inside = set(nodes)
    for node in nodes:
        if _is_unsqueeze(node):
            continue
        own = space_of(node)
        if own is not None and op_name(node) not in (*NORMS, *SOFTMAX) and own.reduced:
            if op_name(node) in LOSSES or not keeps_dims(node):
                found.add(node)
        elif own is None and any(arg in found for arg in node.all_input_nodes if arg in inside):
            found.add(node)
    return found


def _is_unsqueeze(node: fx.Node) -> bool:
    return op_name(node) == "unsqueeze"


def output_nodes(graph: Graph, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes of the group that something outside of it reads."""
    inside = set(nodes)
    return [n for n in nodes if graph.is_output(n) or any(user not in inside for user in n.users)]


def is_identity(node: fx.Node) -> bool:
    """Whether the node's values are its input's, only seen in another shape or type."""
    if op_name(node) == "dropout" and drops(node):
        return False
    return op_name(node) in (*IDENTITY, "broadcast_tensors") or _is_unsqueeze(node)


def _behind_views(node: fx.Node) -> fx.Node:
    """The tensor that ``scale[None, :, None]`` and its like look at."""
    while op_name(node) in ("unsqueeze", "view", "reshape", "slice", "expand"):
        node = node.args[0]
    return node
