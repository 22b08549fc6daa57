"""A loop over all blocks instead of those that count: what is skipped was masked anyway."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import loops, range_of
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


def match(kernel: Kernel) -> list[KernelMatch]:
    """Loops whose bound is the lesser of two."""
    found = []
    for loop in loops(kernel):
        call = range_of(loop)
        bound = call.args[1] if call is not None and len(call.args) > 1 else None
        if isinstance(bound, ast.Call) and ast.unparse(bound.func).split(".")[-1] in (
            "min",
            "minimum",
        ):
            label = f"loop over {ast.unparse(loop.target)}"
            found.append(KernelMatch(label, "a loop over all blocks", data=(loop, bound)))
    return found


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """What the lesser bound skips is masked."""
    loop, bound = match.data
    masked = bool(find_calls(loop, "where")) or any(
        k.arg == "mask" for n in find_calls(loop, "load") for k in n.keywords
    )
    return [
        proof("what is skipped is masked", masked, f"in the loop that ends at {kernel.text(bound)}")
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """Which end is that of everything; the last one is usual."""
    _, bound = match.data
    return {"end": list(reversed(range(len(bound.args))))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, int]) -> None:
    """Run the loop to the chosen one of the two bounds."""
    _, bound = match.data
    kernel.replace(bound, kernel.text(bound.args[parameters["end"]]))
