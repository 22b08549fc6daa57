"""Smaller blocks, all axes of the tile together."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import constants_of
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, Match, Proof, proof

LEAST = 16
"""What tl.dot needs; a row of fewer numbers is no block."""


def match(kernel: Kernel) -> list[Match]:
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
    sizes = {name: place for name, place in sizes.items() if _value(place) > LEAST}
    names = ", ".join(sizes)
    return [Match(names, f"smaller blocks: {names}", data=sizes)] if sizes else []


def preconditions(kernel: Kernel, match: Match) -> list[Proof]:
    told = ", ".join(f"{name} = {_value(place)}" for name, place in match.data.items())
    return [
        proof(
            "blocks may have another size", True, f"{told}; the grid is {kernel.launched[0].grid}"
        )
    ]


def parameters(kernel: Kernel, match: Match) -> dict[str, list[object]]:
    """Divisors: all at their least, then a quarter, then half of what they are."""
    return {"part": ["least", "quarter", "half"]}


def apply(kernel: Kernel, match: Match, parameters: dict[str, str]) -> None:
    for place in match.data.values():
        now = _value(place)
        size = {"least": LEAST, "quarter": now // 4, "half": now // 2}[parameters["part"]]
        kernel.replace(place, str(max(LEAST, size)))


def _value(place: ast.Constant) -> int:
    assert isinstance(place.value, int)
    return place.value
