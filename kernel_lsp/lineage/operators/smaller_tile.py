"""Smaller blocks, all axes of the tile together."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import constants_of
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

MIN_TILE = 16
"""What tl.dot needs; a row of fewer numbers is no block."""


def match(kernel: Kernel) -> list[KernelMatch]:
    """The sizes of blocks (constants that tl.arange spreads) that can be smaller."""
    spread = {
        n.id
        for c in find_calls(kernel.function, "arange")
        for n in c.args[1:]
        if isinstance(n, ast.Name)
    }
    sizes = {
        n: c[0]
        for n in kernel.source.constexprs()
        if n in spread and (c := constants_of(kernel, n))
    }
    sizes = {name: place for name, place in sizes.items() if _value(place) > MIN_TILE}
    names = ", ".join(sizes)
    return [KernelMatch(names, f"smaller blocks: {names}", data=sizes)] if sizes else []


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Blocks may have another size; true of the grid that was recorded."""
    text = ", ".join(f"{name} = {_value(place)}" for name, place in match.data.items())
    return [
        proof(
            "blocks may have another size", True, f"{text}; the grid is {kernel.launched[0].grid}"
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """Divisors: all at their least, then a quarter, then half of what they are."""
    return {"part": ["least", "quarter", "half"]}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, str]) -> None:
    """Write the least size, a quarter or a half of what it is; never below MIN_TILE."""
    for place in match.data.values():
        now = _value(place)
        size = {"least": MIN_TILE, "quarter": now // 4, "half": now // 2}[parameters["part"]]
        kernel.replace(place, str(max(MIN_TILE, size)))


def _value(place: ast.Constant) -> int:
    assert isinstance(place.value, int)
    return place.value
