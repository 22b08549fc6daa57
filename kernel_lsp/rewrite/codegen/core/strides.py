"""Memory layouts of a pointwise region: the order in which it visits its points, and what each
operand needs.

A region walks memory in the order in which eager lays out its results, so that a chain over
transposed or channels-last tensors is a plain walk over permuted views: `order_of(results)`. An
operand whose memory has that order is handed over as such a view (`Permuted`); any other is read
by its strides (`is_mergeable` says which dimensions may still be one). Not covered: reductions,
results that are laid out differently."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, op_name
from kernel_lsp.rewrite.graph import Graph, is_op

aten = torch.ops.aten
TRANSPOSES = (aten.t, aten.numpy_T, aten.mT, aten.transpose, aten.permute)


def order_of(results: Sequence[torch.Tensor], rank: int) -> tuple[int, ...]:
    """The dimensions of the results from the outermost in memory to the innermost.
    Raises Unsupported where results differ in it, or have gaps."""
    orders = {_descending(value) for value in results if value.dim() == rank}
    if len(orders) > 1:
        raise Unsupported("results in different memory layouts")
    order = orders.pop() if orders else tuple(range(rank))
    if not all(value.dim() != rank or value.permute(order).is_contiguous() for value in results):
        return tuple(range(rank))  # an expanded result, say: written in full
    return order


def _descending(value: torch.Tensor) -> tuple[int, ...]:
    """Dimensions of one element lie anywhere: they stay where they are."""
    wide = [dim for dim, size in enumerate(value.shape) if size != 1]
    sorted_ = iter(sorted(wide, key=lambda dim: -value.stride(dim)))
    return tuple(next(sorted_) if size != 1 else dim for dim, size in enumerate(value.shape))


def own_order(sizes: Sequence[int], index: Sequence[int | None]) -> tuple[int, ...]:
    """How an operand's dimensions have to be permuted so that they follow the region's; empty for
    not at all.

    ``index``: for each dimension of the region, in its order, the operand's own dimension.
    """
    own = tuple(dim for dim in index if dim is not None)
    wide = [dim for dim in own if sizes[dim] != 1]
    return () if wide == sorted(wide) else own


def is_mergeable(value: torch.Tensor, left: int, right: int) -> bool:
    """Two dimensions of the tensor can be walked as one."""
    return bool(value.stride(left) == value.stride(right) * value.shape[right])


def argument_names(region: Region) -> list[str]:
    """The names of the strides that a kernel takes which reads operands by them. Triton makes a
    constant of a stride of 1, and has to know which of them 16 divides."""
    every = range(len(region.dims))
    return [f"{item.name}_stride_{axis}" for item in _strided(region) for axis in every]


def arguments(region: Region) -> list[str]:
    """What the launcher passes as strides: each strided tensor's, dimension by dimension."""
    every = range(len(region.dims))
    return [f"{item.name}.stride({axis})" for item in _strided(region) for axis in every]


def named_arguments(region: Region) -> dict[str, str]:
    """What the launcher passes for each stride, by the name that the kernel gives it."""
    return dict(zip(argument_names(region), arguments(region), strict=True))


def reshape_lines(region: Region) -> list[str]:
    """Strided operands with the dimensions of the region: views, unless a call has laid one out
    anew. What is written to is always a view."""
    sizes = ", ".join(dim.name for dim in region.dims)
    return [
        f"    {item.name} = {item.name}.{'view' if isinstance(item, Output) else 'reshape'}({sizes})"
        for item in _strided(region)
    ]


def address(name: str, positions: Sequence[str]) -> str:
    """The text of the address of the element at these positions, one for each dimension."""
    terms = [f"({text})" if " " in text else text for text in positions]
    return " + ".join(f"{text} * {name}_stride_{axis}" for axis, text in enumerate(terms))


def _strided(region: Region) -> list[Operand | Output]:
    """They vary along all dimensions."""
    every: list[Operand | Output] = [*region.operands, *region.outputs]
    return [item for item in every if item.inner is not None]


def is_copy(node: fx.Node) -> bool:
    """contiguous() and its like, where they do lay the tensor out anew."""
    if op_name(node) not in ("contiguous", "clone"):
        return False
    base: fx.Node = node.args[0]
    return bool(node.meta["val"].stride() != base.meta["val"].stride())


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``order``."""
    return tuple(sorted(range(len(order)), key=lambda position: order[position]))


def permute_node(graph: Graph, node: fx.Node, order: Sequence[int], before: fx.Node) -> fx.Node:
    """A view of the node with its dimensions in this order; what is behind a transpose, where it
    is that."""
    order = tuple(order)
    if is_op(node, *TRANSPOSES) and (base := _undo_transpose(node, order)) is not None:
        return base
    moved = [dim for dim, position in enumerate(order) if dim != position]
    if len(moved) == 2:
        return graph.call(aten.transpose.int, (node, *moved), before=before)
    return (
        node if not moved else graph.call(aten.permute.default, (node, list(order)), before=before)
    )


def _undo_transpose(node: fx.Node, order: tuple[int, ...]) -> fx.Node | None:
    """The tensor that was transposed, when the order takes that back: tried on sizes that all
    differ."""
    base: fx.Node = node.args[0]
    probe = torch.empty(tuple(range(2, 2 + len(order))), device="meta")
    turned = node.target(probe, *node.args[1:], **node.kwargs).permute(order)
    return base if turned.shape == probe.shape else None
