"""What is read after a loop: which steps' results, in which layout, and the call that takes the
loop's place.

`results_of(graph, loop) -> list[Result]`, `launch(graph, loop, kernel, inputs, results, …)`.
People collect the states of all steps by `torch.stack(states, dim)`, by `torch.cat` of states with
one more dimension, and turn the list or the tensor around when the loop ran backwards: what
replaces the loop writes that tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph, argument, is_op
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one operation of the loop yields: in every step (``every``), or in the last."""

    index: int
    every: bool
    dim: int = 0
    """Along which the results of all steps lie in one tensor."""
    is_backward: bool = False
    """The last step comes first there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Collected:
    """``nodes``, the last of them first: the calls that put the results of all steps into one
    tensor."""

    nodes: tuple[fx.Node, ...]
    dim: int
    is_backward: bool


def results_of(graph: Graph, loop: UnrolledLoop) -> list[Result]:
    """The results of a loop, each in the layout in which the program collects it first."""
    found = []
    for index, every in loop.results:
        collected = _find_collected(graph, [step[index] for step in loop.steps]) if every else []
        dim, is_backward = (collected[0].dim, collected[0].is_backward) if collected else (0, False)
        found.append(Result(index=index, every=every, dim=dim, is_backward=is_backward))
    return found


def first_reader(graph: Graph, loop: UnrolledLoop) -> fx.Node:
    """The first call after the loop that reads one of its results."""
    order, inside = {node: i for i, node in enumerate(graph.fx.nodes)}, set(loop.nodes)
    readers = [user for node in loop.nodes for user in node.users if user not in inside]
    return min(readers, key=lambda node: order[node])


def launch(
    graph: Graph,
    loop: UnrolledLoop,
    kernel: GeneratedSource,
    inputs: Sequence[fx.Node],
    results: Sequence[Result],
    before: fx.Node,
    name: str,
) -> None:
    """Replace the loop by one call that returns the results."""
    likes = [_like_of(graph, loop, result) for result in results]
    like = likes[0] if len(likes) == 1 else tuple(likes)
    call = graph.call_generated(kernel, inputs, like=like, before=before, name=name)
    for number, result in enumerate(results):
        part = (
            call if len(likes) == 1 else graph.call(operator.getitem, (call, number), before=before)
        )
        redirect(graph, loop, result, part, before)
    graph.drop_unused()


def _like_of(graph: Graph, loop: UnrolledLoop, result: Result) -> torch.Tensor:
    """The fake value of one operation's results: of all steps in one tensor, or of the last."""
    value: torch.Tensor = graph.val(loop.steps[1][result.index])
    shape = list(value.shape)
    if result.every:
        shape.insert(result.dim, loop.length)
    with value.fake_mode:
        return value.new_empty(shape)


def redirect(
    graph: Graph, loop: UnrolledLoop, result: Result, part: fx.Node, before: fx.Node
) -> None:
    """Readers of the steps read the new tensor: whole where they collect it, else slice by
    slice."""
    if not result.every:
        loop.steps[-1][result.index].replace_all_uses_with(part)
        return
    nodes = [step[result.index] for step in loop.steps]
    done, last = set(loop.nodes), loop.length - 1
    for collected in _find_collected(graph, nodes):
        where = collected.nodes[0]
        where.replace_all_uses_with(_move_layout(graph, part, result, collected, where))
        done.update(node for node in collected.nodes if set(node.users) <= done)
    for t, node in enumerate(nodes):
        if any(user not in done for user in node.users):
            at = last - t if result.is_backward else t
            piece = graph.call(aten.select.int, (part, result.dim, at), before=before)
            node.replace_all_uses_with(piece, delete_user_cb=lambda user: user not in done)


def _move_layout(
    graph: Graph, part: fx.Node, result: Result, collected: _Collected, before: fx.Node
) -> fx.Node:
    """The same results in the layout of another tensor that collects them."""
    if collected.is_backward != result.is_backward:
        part = graph.call(aten.flip.default, (part, [result.dim]), before=before)
    if collected.dim == result.dim:
        return part
    moved = graph.call(aten.movedim.int, (part, result.dim, collected.dim), before=before)
    return graph.call(aten.contiguous.default, (moved,), before=before)


def _find_collected(graph: Graph, nodes: list[fx.Node]) -> list[_Collected]:
    """Every tensor that consists of the results of all steps, in order or turned around."""
    found = []
    for user in graph.users(nodes[0]):
        if is_op(user, aten.unsqueeze):
            items, dim, calls = _find_joined(graph, user)
        elif is_op(user, aten.stack):
            items, dim, calls = list(user.args[0]), int(argument(user, "dim", 0)), (user,)
        else:
            continue
        if items not in (nodes, nodes[::-1]):
            continue
        dim, is_backward = dim % graph.val(calls[0]).dim(), items != nodes
        after = graph.only_user(calls[0])
        if (
            after is not None
            and is_op(after, aten.flip)
            and [d % graph.val(after).dim() for d in after.args[1]] == [dim]
        ):
            calls, is_backward = (after, *calls), not is_backward
        found.append(_Collected(nodes=calls, dim=dim, is_backward=is_backward))
    return found


def _find_joined(graph: Graph, wider: fx.Node) -> tuple[list[fx.Node], int, tuple[fx.Node, ...]]:
    """What is given a new dimension and concatenated along it; nothing when it is something
    else."""
    whole = graph.only_user(wider)
    if whole is None or not is_op(whole, aten.cat):
        return [], 0, ()
    parts, rank = list(whole.args[0]), graph.val(whole).dim()
    dim = argument(whole, "dim", 0) % rank
    if all(is_op(part, aten.unsqueeze) and part.args[1] % rank == dim for part in parts):
        return [part.args[0] for part in parts], dim, (whole, *dict.fromkeys(parts))
    return [], 0, ()
