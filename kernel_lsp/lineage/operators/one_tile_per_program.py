"""One program for each tile instead of few that go through all of them."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import block_text, range_of, untuned_launch
from kernel_lsp.rewrite.kernels.grids import grid_of
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """The one loop over tiles that programs share, in an untuned launch whose grid has a cap."""
    capped = _find_cap(grid_of(kernel)) if untuned_launch(kernel) else None
    found = [s for s in kernel.function.body if isinstance(s, ast.For) and _is_persistent(s)]
    if capped is None or len(found) != 1:
        return []
    return [KernelMatch("loop over tiles", "one program for each tile", data=(found[0], capped))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Each tile belongs to one program."""
    loop, _ = match.data
    grid = kernel.launched[0].grid
    text = (
        f"the loop begins at the program's number and advances by their count, the grid is {grid}"
    )
    return [proof("programs share the tiles among themselves", not loop.orelse, text)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """Which of the numbers under ``min`` is that of the tiles."""
    _, capped = match.data
    return {"tiles": list(range(len(capped.args)))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, int]) -> None:
    """Make the loop's body run once, and the grid as large as the tiles are many."""
    loop, capped = match.data
    call = range_of(loop)
    assert call is not None
    column = loop.col_offset
    body = block_text(kernel, loop.body, column)
    first = f"{kernel.text(loop.target)} = {kernel.text(call.args[0])}"
    kernel.replace(loop, f"{first}\n{' ' * column}{body}")
    kernel.replace(capped, kernel.text(capped.args[parameters["tiles"]]))


def _is_persistent(loop: ast.For) -> bool:
    call = range_of(loop)
    return (
        call is not None
        and len(call.args) == 3
        and bool(find_calls(call.args[0], "program_id") or isinstance(call.args[0], ast.Name))
        and bool(find_calls(call.args[2], "num_programs"))
    )


def _find_cap(grid: ast.expr) -> ast.Call | None:
    """``min(programs, tiles)`` in the grid."""
    found = [
        n
        for n in ast.walk(grid)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "min"
    ]
    return found[0] if len(found) == 1 and not found[0].keywords else None
