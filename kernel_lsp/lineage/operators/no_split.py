"""One program for each result instead of several that add up their parts."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import constants_of, untuned_launch
from kernel_lsp.rewrite.kernels.grids import grid_of
from kernel_lsp.rewrite.kernels.source import names_in
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """A constexpr that is an axis of the grid."""
    if untuned_launch(kernel) is None:
        return []
    axes = [e for e in ast.walk(grid_of(kernel)) if isinstance(e, ast.Tuple)]
    named = {
        n
        for t in axes
        for e in t.elts
        if isinstance(e, ast.Name | ast.Subscript)
        for n in _split_names(e)
    }
    found = [n for n in kernel.source.constexprs() if n in named and constants_of(kernel, n)]
    split = [n for n in found if constants_of(kernel, n)[0].value not in (0, 1)]
    return [
        KernelMatch(name, f"no parts along {name}", data=constants_of(kernel, name)[0])
        for name in split
    ]


def _split_names(axis: ast.expr) -> set[str]:
    """``SPLIT`` or ``meta["SPLIT"]``."""
    if isinstance(axis, ast.Subscript):
        return {str(axis.slice.value)} if isinstance(axis.slice, ast.Constant) else set()
    return names_in(axis)


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Parts are added up by atomic operations."""
    grid = kernel.launched[0].grid
    adds = [
        n.attr
        for n in ast.walk(kernel.function)
        if isinstance(n, ast.Attribute) and "atomic" in n.attr
    ]
    return [
        proof(
            "parts are added up",
            bool(adds),
            f"{', '.join(adds) or 'no atomic operation'}, grid {grid}",
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Write 1 in place of the number of parts."""
    kernel.replace(match.data, "1")
