"""Which operations share a kernel that moves elements: one result, and all that leads to it.

Backwards from the result, pointwise operations and moves join as far as nobody else reads what lies
between. Views are read through: the kernel addresses the tensor that they are views of. Where the
result is a number, sums and means over all elements join too, and arithmetic behind them. Not
covered: several results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core import strides
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.moving import complex_numbers, operations
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.graph import Graph, argument

MAX_NODES = 48
SEVERED = ("detach",)
TOTALS = ("sum", "mean")


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRegion:
    """One result and what leads to it, in graph order."""

    out: fx.Node
    nodes: tuple[fx.Node, ...]
    own: tuple[fx.Node, ...]
    """Those that nobody else needs."""

    @property
    def totals(self) -> tuple[fx.Node, ...]:
        """Sums and means over all elements."""
        return tuple(node for node in self.nodes if is_total(node))

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """Tensors that the region reads and does not compute, each once."""
        inside = set(self.nodes)
        read = [
            arg
            for node in self.nodes
            for arg in node.all_input_nodes
            if arg not in inside and isinstance(arg.meta.get("val"), torch.Tensor)
        ]
        return tuple(dict.fromkeys(read))


def region_of(graph: Graph, out: fx.Node) -> MovedRegion | None:
    """All that one kernel can compute on the way to a result; None where it makes no kernel."""
    if not is_total(out) and not _is_work(graph, out):
        return None
    inside, own = {out}, {out}
    nodes = graph.nodes
    for node in reversed(nodes[: nodes.index(out)]):
        users = list(node.users)
        if not any(user in inside for user in users) or len(inside) >= MAX_NODES:
            continue
        alone = not graph.is_output(node) and all(user in own for user in users)
        is_sum = alone and is_total(node) and out.meta["val"].dim() == 0
        if is_sum or _joins(graph, node, inside, alone):
            inside.add(node)
            own |= {node} if alone else set()
    return _without_loose_parts(graph, out, inside, own)


def _is_work(graph: Graph, node: fx.Node) -> bool:
    return _fits(graph, node) and not operations.is_part(node) and not _is_free(node)


def _has_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_total(node: fx.Node) -> bool:
    """A sum or a mean over all elements of a floating-point tensor, as a number."""
    if op_name(node) not in TOTALS or not _has_tensor(node):
        return False
    value, base = node.meta["val"], node.args[0].meta["val"]
    floats = value.dtype in FLOATS and base.dtype == value.dtype
    return floats and value.dim() == 0 < base.dim() and argument(node, "dtype") is None


def _joins(graph: Graph, node: fx.Node, inside: set[fx.Node], alone: bool) -> bool:
    """``alone``: nobody outside needs the node."""
    if op_name(node) in operations.SPLITS:
        return alone or not graph.gradients  # autograd joins the gradients of parts in one go
    if operations.is_part(node):
        return _may_open(graph, node, inside)
    return _fits(graph, node) and (alone or _is_free(node))


def _may_open(graph: Graph, node: fx.Node, inside: set[fx.Node]) -> bool:
    """A part whose split can join: all parts are read here, where gradients are recorded."""
    users = [user for part in node.args[0].users for user in part.users]
    return operations.is_move(node) and (
        not graph.gradients or all(user in inside for user in users)
    )


def _without_loose_parts(
    graph: Graph, out: fx.Node, inside: set[fx.Node], own: set[fx.Node]
) -> MovedRegion:
    """A part whose split did not join is read as it is."""
    loose = {n for n in inside if operations.is_part(n) and n.args[0] not in inside}
    inside, own = inside - loose, own - loose
    return MovedRegion(out=out, nodes=tuple(graph.ordered(inside)), own=tuple(graph.ordered(own)))


def _fits(graph: Graph, node: fx.Node) -> bool:
    if graph.gradients and op_name(node) in SEVERED:
        return False
    if complex_numbers.is_step(node):
        return True
    return operations.is_move(node) or (is_pointwise(node) and op_name(node) != "broadcast_part")


def _is_free(node: fx.Node) -> bool:
    """It costs nothing in eager, for other readers as well."""
    if operations.name_of(node) in operations.BUILDERS or op_name(node) == "contiguous":
        return operations.is_view(node)
    return is_identity(node) and not strides.is_copy(node) and op_name(node) != "clone"


def moves_much(graph: Graph, region: MovedRegion) -> bool:
    """Something is read elsewhere than a pointwise kernel would: a copy with other places, or
    several slices of one tensor."""
    slices: dict[fx.Node, int] = {}
    for node in region.nodes:
        name = operations.name_of(node)
        if name in ("slice", "select", "narrow"):  # parts have a kernel in fused-pointwise
            (base,) = operations.sources(node)
            slices[base] = slices.get(base, 0) + 1
        moves = name in operations.BUILDERS or name == "contiguous"
        if moves and name != "expand" and not operations.is_view(node):
            return True
        if complex_numbers.is_complex(node):  # its pairs are read as they lie
            return True
    return any(count > 1 for count in slices.values()) or bool(graph.gradients and slices)
