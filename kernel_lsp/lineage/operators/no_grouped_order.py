"""Tiles in the order of the programs' numbers instead of groups that share rows."""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """The first order of tiles in groups (tl.swizzle2d)."""
    found = [
        s
        for s in ast.walk(kernel.function)
        if isinstance(s, ast.Assign) and s.value in find_calls(kernel.function, "swizzle2d")
    ]
    found = [
        s for s in found if isinstance(s.targets[0], ast.Tuple) and isinstance(s.value, ast.Call)
    ]
    return (
        [KernelMatch("tl.swizzle2d", "tiles in the order of the programs", data=found[0])]
        if found
        else []
    )


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """The tiles are operands of a product, so neighbors load the same rows or columns."""
    grid = kernel.launched[0].grid if kernel.launched else None
    dot = bool(find_calls(kernel.function, "dot"))
    said = f"its tiles are operands of tl.dot, the grid is {grid or 'chosen with the blocks'}"
    return [proof("neighboring programs load the same rows or columns", dot, said)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Keep the tile's own numbers in place of the swizzled ones."""
    statement = match.data
    targets, given = statement.targets[0].elts, statement.value.args[:2]
    if [kernel.text(t) for t in targets] == [kernel.text(g) for g in given]:
        kernel.replace(statement, "")
    else:
        kernel.replace(statement.value, ", ".join(kernel.text(g) for g in given))
