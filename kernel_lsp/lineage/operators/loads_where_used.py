"""A load inside the loop that uses it, instead of once before."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import block_text, blocks, stored_names, used_names
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """The first loop that uses loads from just before it which can move into it."""
    for body in blocks(kernel.function):
        for at, loop in enumerate(body):
            if isinstance(loop, ast.For) and (moved := _movable_loads(body, at, loop)):
                names = ", ".join(sorted(stored_names(s).pop() for s in moved))
                return [
                    KernelMatch(
                        names, f"{names} loaded in each turn of the loop", data=(loop, moved)
                    )
                ]
    return []


def _movable_loads(body: list[ast.stmt], at: int, loop: ast.For) -> list[ast.Assign]:
    """Loads before the loop of which only the loop knows."""
    found = []
    for place, statement in enumerate(body[:at]):
        if not isinstance(statement, ast.Assign) or not find_calls(statement.value, "load"):
            continue
        others = (*body[place + 1 : at], *body[at + 1 :])
        names, needs = stored_names(statement), used_names(statement)
        alone = len(names) == 1 and not any(
            names & (used_names(s) | stored_names(s)) for s in others
        )
        if alone and names <= used_names(loop) and not (names | needs) & stored_names(loop):
            found.append(statement)
    return found


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """The loop changes nothing that the loads read by."""
    _, moved = match.data
    text = ", ".join(sorted(n for s in moved for n in stored_names(s)))
    return [
        proof("what is loaded is the same in each turn", True, f"the loop binds nothing of {text}")
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Move the loads to the top of the loop, into each of its turns."""
    loop, moved = match.data
    column = loop.body[0].col_offset
    lines = [block_text(kernel, [statement], column) for statement in moved]
    for statement in moved:
        kernel.replace(statement, "")
    first = loop.body[0]
    kernel.replace(first, f"\n{' ' * column}".join([*lines, kernel.text(first)]))
