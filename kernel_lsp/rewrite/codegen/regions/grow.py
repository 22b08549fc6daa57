"""Which nodes share a kernel: grow from a seed over pointwise neighbors, while that stays sound.

A group is convex: no path leaves it and comes back, or the kernel would wait for its own result.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import LOW, argument_nodes, op_name
from kernel_lsp.rewrite.codegen.core.space import (
    LOSSES,
    NORMS,
    PLACES,
    SOFTMAX,
    RegionShape,
    shape_of,
    space_of,
)
from kernel_lsp.rewrite.codegen.pointwise.channelwise import is_channelwise
from kernel_lsp.rewrite.codegen.pointwise.dropping import is_dropping
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.codegen.regions.lower import is_identity, output_nodes, squeezed_nodes
from kernel_lsp.rewrite.graph import Graph, argument

MAX_NODES = 40
"""A kernel with more lines is no longer read by anybody, and starts to spill registers."""


def grow(
    graph: Graph, seed: fx.Node, space: RegionShape, taken: Iterable[fx.Node] = ()
) -> list[fx.Node]:
    """The group around a seed, in graph order."""
    group, closed = {seed}, set(taken)
    changed = True
    while changed and len(group) < MAX_NODES:
        changed = False
        for node in _neighbors(graph, group):
            if node in group or node in closed or not _fits(graph, node, group, space):
                continue
            if convex(graph, {*group, node}):
                group.add(node)
                changed = True
                break
    return _trim(graph, group, space)


def convex(graph: Graph, group: set[fx.Node]) -> bool:
    """Whether no node outside lies on a path between two nodes inside."""
    behind: set[fx.Node] = set()
    order = graph.nodes
    inside = [index for index, node in enumerate(order) if node in group]
    for node in order[inside[0] : inside[-1] + 1] if inside else ():
        if node in group:
            if any(arg in behind for arg in node.all_input_nodes):
                return False
        elif any(arg in group or arg in behind for arg in node.all_input_nodes):
            behind.add(node)
    return True


def _neighbors(graph: Graph, group: set[fx.Node]) -> list[fx.Node]:
    near = {arg for node in group for arg in node.all_input_nodes}
    near |= {user for node in group for user in graph.users(node)}
    return graph.ordered(near - group)


def _fits(graph: Graph, node: fx.Node, group: set[fx.Node], space: RegionShape) -> bool:
    if _moves_ties({*group, node}):
        return False
    own = space_of(node)
    if own is not None:
        return own == space and bool(space.reduced)
    if op_name(node) == "broadcast_tensors":
        return all(user in group for user in node.users)
    if op_name(node) == "unsqueeze":
        return _restores(graph, node, group, space)
    if not _acts(graph, node, group, space):
        return False
    if not any(node in member.all_input_nodes for member in group):
        return _reader_fits(graph, node, group, space)
    if any(_holds_channels(user, node) for user in group):
        return False
    return _producer_fits(graph, node, group, space)


def _moves_ties(group: set[fx.Node]) -> bool:
    """Values that eager rounds to 16 bits before it looks for the largest: many are equal there,
    and not in float32."""
    dtypes = {getattr(node.meta["val"], "dtype", None) for node in group}
    return any(op_name(node) in PLACES for node in group) and not dtypes.isdisjoint(LOW)


def _acts(graph: Graph, node: fx.Node, group: set[fx.Node], space: RegionShape) -> bool:
    """Element by element, with other operands than tensors of a channel only where it is as large
    as the space; one mask of a dropout is drawn in a kernel."""
    if is_dropping(node):
        return shape_of(node) == space.sizes and not any(map(is_dropping, group))
    channels = is_channelwise(graph, node) and shape_of(node) == space.sizes
    return channels or is_pointwise(node)


def _reader_fits(graph: Graph, node: fx.Node, group: set[fx.Node], space: RegionShape) -> bool:
    shape = shape_of(node)
    if node in squeezed_nodes(graph.ordered({*group, node})):
        return shape == _squeezed_shape(space)
    return shape == space.sizes or (bool(space.reduced) and shape == _kept_shape(space))


def _producer_fits(graph: Graph, node: fx.Node, group: set[fx.Node], space: RegionShape) -> bool:
    shape, squeezed = shape_of(node), squeezed_nodes(graph.ordered(group))
    if any(user in squeezed for user in node.users if user in group):
        return _feeds_reduction(node, group) and shape == space.sizes
    if shape == space.sizes:
        return True
    # A smaller tensor would be computed again for each element: only if nobody else needs it.
    private = not graph.is_output(node) and all(user in group for user in node.users)
    return private and len(shape) <= len(space.sizes)


def _feeds_reduction(node: fx.Node, group: set[fx.Node]) -> bool:
    return all(space_of(user) is not None for user in node.users if user in group)


def _holds_channels(user: fx.Node, node: fx.Node) -> bool:
    """A norm's weight is aligned by its own rule; it stays an operand."""
    held = op_name(user) in (*NORMS, "batch_norm", "prelu")
    return held and node in user.all_input_nodes and node is not user.args[0]


def _restores(graph: Graph, node: fx.Node, group: set[fx.Node], space: RegionShape) -> bool:
    """unsqueeze right after a reduction without keepdim puts the dimension back."""
    base = node.args[0]
    if base not in squeezed_nodes(graph.ordered(group)) or len(space.reduced) != 1:
        return False
    return int(argument(node, "dim")) % len(space.sizes) == space.reduced[0]


def _kept_shape(space: RegionShape) -> tuple[int, ...]:
    if space.groups is not None:
        return ()
    return tuple(1 if axis in space.reduced else n for axis, n in enumerate(space.sizes))


def _squeezed_shape(space: RegionShape) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(space.sizes) if axis not in space.reduced)


def _trim(graph: Graph, group: set[fx.Node], space: RegionShape) -> list[fx.Node]:
    """Drop results that are no work (a dropout in eval mode) or of a shape that cannot be
    stored."""
    while True:
        nodes = graph.ordered(group)
        bad = [n for n in output_nodes(graph, nodes) if is_identity(n) or not _storable(n, space)]
        if not bad:
            return nodes
        group -= set(bad)


def _storable(node: fx.Node, space: RegionShape) -> bool:
    shape = shape_of(node)
    if op_name(node) in (*NORMS, *SOFTMAX):
        return True
    if space_of(node) is not None and op_name(node) not in LOSSES:
        return True
    allowed = [space.sizes]
    if space.reduced and space.groups is None:
        allowed += [_kept_shape(space), _squeezed_shape(space)]
    return shape in allowed


def pointwise_groups(graph: Graph) -> list[tuple[list[fx.Node], RegionShape]]:
    """Disjoint groups of pointwise operations, last results first."""
    taken: set[fx.Node] = set()
    found = []
    for node in reversed(graph.nodes):
        acts = is_pointwise(node) or is_channelwise(graph, node) or is_dropping(node)
        if node in taken or not acts or is_identity(node):
            continue
        space = RegionShape(sizes=shape_of(node))
        nodes = _drop_expansions(grow(graph, node, space, taken), space)
        taken.update(nodes)
        if nodes:
            found.append((nodes, space))
    return found[::-1]


def _drop_expansions(nodes: list[fx.Node], space: RegionShape) -> list[fx.Node]:
    """Without what expands a tensor along a dimension that no other operand has: the kernel reads
    the expanded tensor, and its sizes there."""
    inside = set(nodes)
    outside = {arg for node in nodes for _, arg in argument_nodes(node) if arg not in inside}
    if all(any(_size_at(arg, axis) == size for arg in outside) for axis, size in _wide(space)):
        return nodes
    return [
        n for n in nodes if op_name(n) not in ("expand", "broadcast_part") or n.args[0] in inside
    ]


def _wide(space: RegionShape) -> list[tuple[int, int]]:
    """Dimensions of more than one element, counted from the last, with their sizes."""
    return [(axis - len(space.sizes), size) for axis, size in enumerate(space.sizes) if size != 1]


def _size_at(node: fx.Node, axis: int) -> int:
    shape = shape_of(node)
    return shape[axis] if len(shape) >= -axis else 1
