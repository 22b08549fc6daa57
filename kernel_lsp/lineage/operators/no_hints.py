"""Offsets without what the compiler was promised of them."""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

HINTS = ("max_contiguous", "multiple_of", "max_constancy")


def match(kernel: Kernel) -> list[KernelMatch]:
    """The outermost: ``tl.max_contiguous(tl.multiple_of(x, 16), 16)`` goes at once."""
    calls = [call for name in HINTS for call in find_calls(kernel.function, name)]
    outer = [c for c in calls if not any(o is not c and c in ast.walk(o) for o in calls)]
    known = find_calls(kernel.function, "assume")
    assumed = [s for s in ast.walk(kernel.function) if isinstance(s, ast.Expr) and s.value in known]
    if not outer and not assumed:
        return []
    count = len(calls) + len(assumed)
    return [
        KernelMatch(
            f"{count} hints", "offsets without hints for the compiler", data=(outer, assumed)
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """What the hints promise holds; true of the call that was recorded."""
    sizes = kernel.launched[0].arguments | kernel.launched[0].constants if kernel.launched else {}
    text = ", ".join(f"{name} = {value}" for name, value in sizes.items() if type(value) is int)
    return [proof("what is promised holds", True, f"for {text or 'what it was called with'}")]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Keep what each hint is around, and take assumptions away."""
    outer, assumed = match.data
    for call in outer:
        inner = call
        while isinstance(inner, ast.Call) and ast.unparse(inner.func).split(".")[-1] in HINTS:
            inner = inner.args[0]
        compound = not isinstance(inner, ast.Name | ast.Call | ast.Subscript)
        kernel.replace(call, f"({kernel.text(inner)})" if compound else kernel.text(inner))
    for statement in assumed:
        kernel.replace(statement, "")
