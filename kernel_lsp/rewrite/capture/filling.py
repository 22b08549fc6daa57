"""A fresh tensor that is written slice by slice becomes the stack of what was written.

People collect the results of a loop by `out = torch.empty(…)` and `out[:, t] = h`. Where every
slice along one dimension is written exactly once before the whole is read, nothing is left of the
fresh tensor, and no memory is shared that a graph would have to follow. A written slice may be
read again (`out[:, t - 1]`). Not covered: slices that stay as they were, parts of slices (`out[:,
t, :8]`), tensors that were passed in, and for a GPU `torch.empty(…)` without a device: it lies on
the CPU, and so would the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.graph import Graph, is_op
from kernel_lsp.rewrite.naming import Statements

aten = torch.ops.aten
LIKE = (aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like, aten.new_empty,
        aten.new_zeros,
        aten.new_ones, aten.new_full)  # fmt: skip
FRESH = (*LIKE, aten.empty, aten.zeros, aten.ones, aten.full)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Filling:
    base: fx.Node
    dim: int
    written: dict[int, fx.Node]
    """Index -> the call that writes there, in the order of the calls."""
    reads: dict[fx.Node, int]
    """Slices that are read while others are still written -> their index."""


def unfill(graph: Graph) -> list[fx.Node]:
    """Replaces what is written into tensors by values, in place. Returns copies of what was
    written, each made where it was written: what is changed in place after that is another value.
    `settle` takes them out when nothing is changed in place any more."""
    order = {node: index for index, node in enumerate(graph.fx.nodes)}
    found = [_filling(graph, node, order) for node in graph.nodes if is_op(node, *FRESH)]
    return [copy for filling in found if filling is not None for copy in _stack(graph, filling)]


def settle(graph: Graph, copies: list[fx.Node]) -> None:
    """Let readers have the value itself instead of its copy. What looks at an input or at a buffer
    stays: an operation may have an effect on those."""
    for node in copies:
        value = node.args[0]
        if value.op == "call_function" and not _is_view(value):
            node.replace_all_uses_with(value)
            graph.fx.erase_node(node)


def _filling(graph: Graph, base: fx.Node, order: dict[fx.Node, int]) -> _Filling | None:
    """How the tensor is filled; None when it is not, or when somebody reads what was not written
    yet."""
    writes = _writes(graph, base)
    if not writes or not graph.val(base).is_contiguous() or not _lies_with_inputs(graph, base):
        return None
    shape, dim = graph.val(base).shape, next(iter(writes)).args[1]
    written = {piece.args[2] % shape[dim]: write for piece, write in writes.items()}
    is_each_written_once = len(written) == len(writes) == shape[dim]
    if not is_each_written_once or not all(_is_along(dim, piece, shape) for piece in writes):
        return None
    reads = _early_readers(base, writes, order)
    if not all(_is_unchanged_slice(user) and _is_along(dim, user, shape) for user in reads):
        return None
    indices = {user: user.args[2] % shape[dim] for user in reads}
    if any(order[written[index]] > order[user] for user, index in indices.items()):
        return None
    return _Filling(base=base, dim=dim % len(shape), written=written, reads=indices)


def _is_along(dim: int, piece: fx.Node, shape: Sequence[int]) -> bool:
    """Whether the slice is of that dimension, counted from either end."""
    return bool((piece.args[1] - dim) % len(shape) == 0)


def _early_readers(
    base: fx.Node, writes: dict[fx.Node, fx.Node], order: dict[fx.Node, int]
) -> list[fx.Node]:
    """Those that look into the tensor while some of it may not be written yet."""
    last = max(order[write] for write in writes.values())
    early = [user for user in base.users if order[user] <= last and user not in writes]
    return [user for user in early if not is_op(user, *LIKE)]


def _lies_with_inputs(graph: Graph, base: fx.Node) -> bool:
    """Everything is captured on a CPU, so that only the person's statement says where a tensor is
    made."""
    if graph.device == "cpu" or (is_op(base, *LIKE) and "device" not in base.kwargs):
        return True
    place = Statements(graph.origin.program, graph.origin.function, graph.origin.path).key(base)
    if place is None:
        return False
    text = "\n".join(graph.origin.program.split("\n")[place[0] - 1 : place[1]])
    return "device" in text and "cpu" not in text


def _is_slice(node: fx.Node) -> bool:
    return is_op(node, aten.select) and isinstance(node.args[2], int)


def _is_unchanged_slice(node: fx.Node) -> bool:
    return _is_slice(node) and not any(map(_changes, node.users))


def _writes(graph: Graph, base: fx.Node) -> dict[fx.Node, fx.Node]:
    """Slice of the tensor -> the call that writes it."""
    slices = [user for user in graph.users(base) if _is_slice(user)]
    return {piece: write for piece in slices if (write := _write_to(graph, piece)) is not None}


def _write_to(graph: Graph, piece: fx.Node) -> fx.Node | None:
    """The call that writes a tensor of the same kind into this slice, which nobody else reads."""
    write = next(iter(piece.users)) if len(piece.users) == 1 else None
    if write is None or not is_op(write, aten.copy_) or write.args[0] is not piece or write.users:
        return None
    new, old = graph.val(write.args[1]), graph.val(piece)
    return (
        write
        if write.args[1] is not piece and (new.shape, new.dtype) == (old.shape, old.dtype)
        else None
    )


def _changes(user: fx.Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _stack(graph: Graph, found: _Filling) -> list[fx.Node]:
    base, writes = found.base, list(found.written.values())
    copies = {
        index: graph.call(aten.clone.default, (write.args[1],), before=write)
        for index, write in found.written.items()
    }
    for piece, index in found.reads.items():
        piece.replace_all_uses_with(copies[index])
    whole = [copies[index] for index in sorted(copies)]
    gone = [*writes, *(write.args[0] for write in writes), *found.reads]
    readers = {user for user in base.users if user not in gone and not is_op(user, *LIKE)}
    first = next((node for node in graph.fx.nodes if node in readers), graph.output)
    stacked = graph.call(aten.stack.default, (whole, found.dim), before=first)
    stacked.meta |= {key: base.meta[key] for key in ("stack_trace",) if key in base.meta}
    for node in gone:
        graph.fx.erase_node(node)
    base.replace_all_uses_with(stacked, delete_user_cb=lambda user: not is_op(user, *LIKE))
    if not base.users:
        graph.fx.erase_node(base)
    return list(copies.values())
