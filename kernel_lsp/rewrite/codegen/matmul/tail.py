"""What follows a matrix product element by element, as values over the rows and columns of its
tile.

The tail grows forward from the product over pointwise operations of the product's own shape, batch
norm in eval mode among them, and may end in a reduction over its columns or rows (reduced_rows.py).
Operands from outside may have any shape that broadcasts to it: a bias over the columns, one number
for each row, a whole residual. Results that others read are stored too. Rows and columns are those
in memory: of an einsum's result, whose dimensions stand in another order there, operands are read
as permuted views."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.core import strides
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Dim, Operand, Output, Region, Value, apply, load
from kernel_lsp.rewrite.codegen.core.nodes import (
    Unsupported,
    argument_nodes,
    argument_of,
    dtype_name,
    op_name,
)
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.matmul import reduced_rows
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct
from kernel_lsp.rewrite.codegen.pointwise import channelwise
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE, is_pointwise
from kernel_lsp.rewrite.codegen.reduction import operations as reductions
from kernel_lsp.rewrite.codegen.regions.grow import convex
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, is_identity, output_nodes
from kernel_lsp.rewrite.graph import Graph

MAX_TAIL_NODES = 24
"""Nodes of a tail; a longer kernel is no longer read by anybody."""
TAKEN = ("out", "rows", "cols", "inner", "product", "batch", "start_row", "start_col", "start",
         "end",
         "row_mask", "col_mask", "mask", "n_rows", "n_cols", "n_inner", "n_parts", "all_rows",
         "part",
         "partial", "tile", "group", "height", "share", "padded", "grid", "row_tiles", "col_tiles",
         "left_rows", "right_cols", "left_row", "right_row", "left_at", "right_at", "by_tile",
         "walked", "tiles", "n_batches", "all_cols")  # fmt: skip


def grow(graph: Graph, product: MatmulProduct) -> list[fx.Node]:
    """The product and the operations that join its kernel, in graph order."""
    group, shape = [product.node], shape_of(product.node)
    if product.kept is not None:
        group.append(product.kept)
    for node in graph.nodes if product.col_dims == 1 else []:
        if (
            len(group) >= MAX_TAIL_NODES
            or node in group
            or not any(arg in group for arg in node.all_input_nodes)
        ):
            continue
        acts = is_pointwise(node) or (not product.order and _is_column_norm(graph, node))
        if acts and shape_of(node) == shape and convex(graph, {*group, node}):
            group.append(node)
    while is_identity(group[-1]):  # a dropout in eval mode is no work
        group.pop()
    return [*group, *reduced_rows.after(graph, product, group)]


def _is_column_norm(graph: Graph, node: fx.Node) -> bool:
    """Batch norm in eval mode over the columns, or PReLU: their parameters broadcast as a bias
    does."""
    return channelwise.is_channelwise(graph, node) and len(shape_of(node)) == 2


def lower(
    graph: Graph, product: MatmulProduct, nodes: Sequence[fx.Node], name: str
) -> LoweredRegion:
    """The region that starts from the value ``product``. Raises Unsupported when an operand does
    not fit."""
    return _TailLowering(graph, product, nodes).run(name)


def factor_names(graph: Graph, product: MatmulProduct) -> tuple[str, str]:
    """Names of the factors in the launcher."""
    names = UniqueNames(TAKEN)
    left = names.fresh(_hint(graph, product.left))
    return left, names.fresh(_hint(graph, product.right))


class _TailLowering:
    def __init__(self, graph: Graph, product: MatmulProduct, nodes: Sequence[fx.Node]) -> None:
        self.graph, self.product, self.nodes = graph, product, list(nodes)
        self.inside = set(nodes)
        whole = shape_of(product.node)
        self.order = product.order or tuple(range(len(whole)))
        self.shape = tuple(whole[dim] for dim in self.order)
        self._check_layouts()
        self.names = UniqueNames([*TAKEN, *factor_names(graph, product)])
        self.outside = list(dict.fromkeys(arg for node in nodes for arg in self._reads(node)))
        self.groups = self._collapse()
        self.views = dict[fx.Node, tuple[int, ...]]()
        self.operands = {node: self._operand(node) for node in self.outside}
        self.values: dict[fx.Node, Any] = {}
        self.loads: dict[fx.Node, Value] = {}

    def run(self, name: str) -> LoweredRegion:
        """What joins the product, as a region of this name."""
        nodes = output_nodes(self.graph, self.nodes)
        outputs = [
            Output(
                name="out" if len(nodes) == 1 else self.names.fresh(f"{node.name}_out"),
                value=self.value(node),
                dtype=dtype_name(node.meta["val"].dtype),
                shape="",
                rowwise=reduced_rows.is_reduction(node),
                columns=reduced_rows.is_down(node, len(self.shape)),
            )
            for node in nodes
        ]
        order = tuple(self.operands.values())
        region = Region(name=name, dims=self._dims(), outputs=tuple(outputs), order=order)
        inputs = (self.product.left, self.product.right, *self.outside)
        return LoweredRegion(
            region=region, inputs=inputs, outputs=tuple(nodes), values=self.values,
            views=self.views,
            order=self.product.order,
        )  # fmt: skip

    def _check_layouts(self) -> None:
        """Of what is written: where dimensions of the product lie, eager's results may lie
        otherwise."""
        whole = [node.meta["val"] for node in output_nodes(self.graph, self.nodes)]
        whole = [value for value in whole if value.shape == self.product.node.meta["val"].shape]
        if not all(value.permute(self.order).is_contiguous() for value in whole):
            raise Unsupported("a result lies in memory unlike the product")

    def value(self, node: fx.Node) -> Any:
        """The value of a node, built at its first use."""
        if node not in self.values:
            self.values[node] = self._build(node)
        return self.values[node]

    def _build(self, node: fx.Node) -> Any:
        if node is self.product.node:
            value = Value(op="product", hint="product")
            added = self.product.added
            return value if added is None else apply("add", value, self._load(added))

        if node is self.product.kept:
            half = Value(op=f"{self.product.kept_half}_half", dtype="bool")
            return apply("where", half, self.value(self.product.node), 0.0, hint="triangle")

        def get(name: str) -> Any:
            arg = argument_of(node, name)
            if not isinstance(arg, fx.Node):
                return arg
            return self.value(arg) if arg in self.inside else self._load(arg)

        if node.target is operator.getitem:
            return self.value(node.args[0])
        if op_name(node) in reduced_rows.REDUCTIONS:
            return reductions.build(node, get)
        if channelwise.has_channels(node):
            return channelwise.build(node, get)
        return TABLE[op_name(node)](node, get)

    def _load(self, node: fx.Node) -> Value:
        if node not in self.loads:
            self.loads[node] = load(self.operands[node])
        return self.loads[node]

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        if node is self.product.node:
            return [self.product.added] if self.product.added is not None else []
        if node is self.product.kept or node.target is operator.getitem:
            return []
        return [arg for _, arg in argument_nodes(node) if arg not in self.inside]

    # --- operands and dimensions -----------------------------------------------------------

    def _sizes(self, node: fx.Node) -> tuple[int, ...]:
        """In the product's order in memory, with 1 where it is broadcast."""
        sizes = shape_of(node)
        aligned = (1,) * (len(self.shape) - len(sizes)) + sizes
        if len(aligned) == len(self.order):
            aligned = tuple(aligned[dim] for dim in self.order)
        if len(aligned) != len(self.shape) or any(
            n not in (1, whole) for n, whole in zip(aligned, self.shape, strict=True)
        ):
            raise Unsupported(f"{node.name} does not broadcast to the product")
        return aligned

    def _collapse(self) -> list[list[int]]:
        """Adjacent row dimensions that every operand treats alike become one; the columns stay
        apart."""
        last, groups = len(self.shape) - 1, list[list[int]]()
        for axis in range(last):
            if self.shape[axis] == 1:
                continue
            if groups and all(self._alike(node, groups[-1][-1], axis) for node in self.outside):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        return [*(groups or [[0]]), [last]]

    def _alike(self, node: fx.Node, left: int, right: int) -> bool:
        sizes = self._sizes(node)
        return (sizes[left] != 1) == (sizes[right] != 1)

    def _operand(self, node: fx.Node) -> Operand:
        value, sizes = node.meta["val"], self._sizes(node)
        axes = tuple(i for i, group in enumerate(self.groups) if sizes[group[0]] != 1)
        skipped = len(self.shape) - value.dim()
        index = [dim - skipped if dim >= skipped else None for dim in self.order]
        if view := strides.own_order(value.shape, index):
            self.views[node], value = view, value.permute(view)
        if len(axes) == len(self.groups) and not value.is_contiguous():
            raise Unsupported(f"{node.name} is not contiguous: copying it first would cost a pass")
        name = self.names.fresh(_hint(self.graph, node))
        return Operand(name=name, dtype=dtype_name(value.dtype), axes=axes)

    def _dims(self) -> tuple[Dim, ...]:
        *rows, _ = self.groups
        names = ["all_rows"] if len(rows) == 1 else [f"size_{group[0]}" for group in rows]
        made = []
        for name, group in zip([*names, "n_cols"], self.groups, strict=True):
            size = 1
            for axis in group:
                size *= self.shape[axis]
            text = " * ".join(f"out.shape[{axis}]" for axis in group)
            made.append(Dim(name=name, size=size, source=text))
        return tuple(made)


def _hint(graph: Graph, node: fx.Node) -> str:
    """The last word of an attribute, or the name of the value; views of it look at the same
    thing."""
    base = node
    while op_name(base) in (
        "numpy_T",
        "t",
        "transpose",
        "view",
        "unsqueeze",
        "permute",
        "expand",
        "mT",
    ):
        base = base.args[0]
    path = graph.state.get(base)
    return path.split(".")[-1] if path else graph.variable(base)
