"""First the maximum, then all that needs it, instead of both at once with a correction in each
turn.

The loop stands twice: the first time only with what the running maximum comes from, the second
time with the maximum known, so that its corrections multiply by one."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp.lineage.places import block_text, blocks, floats, stored_names, used_names
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


@dataclass(frozen=True, slots=True)
class Online:
    loop: ast.For
    running: str
    """Carried from turn to turn."""
    now: ast.Assign
    """``now = tl.maximum(running, …)``."""
    carried: ast.Assign
    """``running = now``."""
    first: tuple[ast.stmt, ...]
    """What the maximum comes from, in order."""


def match(kernel: Kernel) -> list[KernelMatch]:
    """The first loop that keeps a running maximum and corrects by it."""
    found = [
        one
        for body in blocks(kernel.function)
        for s in body
        if isinstance(s, ast.For) and (one := _online(s))
    ]
    return [
        KernelMatch(f"maximum {one.running}", "the maximum in a pass of its own", data=one)
        for one in found[:1]
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Tensors are floats, and each turn corrects by the running maximum."""
    one = match.data
    text = f"{one.running} is carried by {ast.unparse(one.carried)}, and the loop stores nothing"
    return [proof("each turn corrects by the running maximum", True, text), floats(kernel)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Find the maximum in a loop before, and take the corrections out of this one."""
    one = match.data
    column, inner = one.loop.col_offset, one.loop.body[0].col_offset
    head = f"for {kernel.text(one.loop.target)} in {kernel.text(one.loop.iter)}:"
    lines = [block_text(kernel, [s], inner) for s in one.first]
    first = f"\n{' ' * inner}".join([head, *lines, kernel.text(one.carried)])
    known = f"{kernel.text(one.now.targets[0])} = {one.running}"
    body = [
        known if s is one.now else block_text(kernel, [s], inner)
        for s in one.loop.body
        if s is not one.carried
    ]
    second = f"\n{' ' * inner}".join([head, *body])
    kernel.replace(one.loop, f"{first}\n{' ' * column}{second}")


def _online(loop: ast.For) -> Online | None:
    """None where the loop stores or does nothing else, or where the maximum needs something else
    that is carried."""
    if find_calls(loop, "store"):
        return None
    statements = (s for s in loop.body if isinstance(s, ast.Assign))
    plain = [s for s in statements if isinstance(s.targets[0], ast.Name)]
    found = (_online_with(loop, plain, now) for now in plain if _takes_maximum(now))
    return next((one for one in found if one is not None), None)


def _takes_maximum(statement: ast.Assign) -> bool:
    return isinstance(statement.value, ast.Call) and statement.value in find_calls(
        statement, "maximum"
    )


def _online_with(loop: ast.For, plain: list[ast.Assign], now: ast.Assign) -> Online | None:
    """``now``: the statement that takes the maximum so far."""
    names = stored_names(now)
    carried = [s for s in plain if isinstance(s.value, ast.Name) and s.value.id in names]
    running = {n for s in carried for n in stored_names(s)} & used_names(now)
    first = _slice(loop, now)
    does_more = any(s not in (*first, *carried) for s in loop.body)
    if not does_more or len(carried) != 1 or len(running) != 1:
        return None
    of_slice = {n for s in first for n in stored_names(s)}
    others = stored_names(loop) - of_slice - stored_names(loop.target)
    if _is_carried(first, others, running):
        return None
    return Online(loop, running.pop(), now, carried[0], tuple(first))


def _slice(loop: ast.For, now: ast.stmt) -> list[ast.stmt]:
    """Statements up to ``now`` that it needs."""
    wanted, found = used_names(now), [now]
    for statement in reversed(loop.body[: loop.body.index(now)]):
        if stored_names(statement) & wanted:
            found.append(statement)
            wanted |= used_names(statement)
    return found[::-1]


def _is_carried(first: list[ast.stmt], others: set[str], running: set[str]) -> bool:
    """Whether the slice needs anything but the maximum from an earlier turn."""
    bound: set[str] = set()
    for statement in first:
        late = {n for s in first for n in stored_names(s)} - bound
        if isinstance(statement, ast.AugAssign) or used_names(statement) & (
            (others | late) - running
        ):
            return True
        bound |= stored_names(statement)
    return False
