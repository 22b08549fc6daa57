"""Loads of later rounds begin while a round computes: a loop's range says how many rounds ahead.

Triton does so by itself where loads feed tl.dot, and elsewhere where tl.range has num_stages. It
does not ask whether a load reads what an earlier round stores: so only loops are changed that
store nothing."""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels.effects import is_quiet
from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, stored_names
from kernel_lsp.rewrite.kernels.terms import bounds
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

STAGES = (3, 2, 4, 6)
OFF = 1
"""One stage: each round's loads begin with the round."""


def match(kernel: Kernel) -> list[KernelMatch]:
    loops = [n for n in ast.walk(kernel.function) if isinstance(n, ast.For) and _fits(kernel, n)]
    if not loops or language(kernel) is None:
        return []
    count = f"{len(loops)} loop{'s' if len(loops) > 1 else ''}"
    return [KernelMatch(count, f"loads begin some rounds ahead ({count})", 0.03, data=tuple(loops))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        proof(
            "a load may begin before earlier rounds have ended",
            True,
            "these loops write nothing to memory, and call nothing that might",
        )
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {"num_stages": [*STAGES, OFF]}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    if parameters["num_stages"] == OFF:
        return
    for loop in match.data:
        last = loop.iter.args[-1]
        kernel.replace(loop.iter.func, f"{language(kernel)}.range")
        kernel.replace(last, f"{kernel.text(last)}, num_stages={parameters['num_stages']}")


def _fits(kernel: Kernel, loop: ast.For) -> bool:
    """An innermost loop over a range without options of its own, whose rounds load different
    places."""
    ends = bounds(loop)
    if ends is None or not isinstance(loop.iter, ast.Call) or loop.iter.keywords or loop.orelse:
        return False
    if names_in(ends[1]) <= set(kernel.source.constexprs()):
        return False  # so few rounds are unrolled
    if ast.unparse(loop.iter.func).endswith("static_range") or find_calls(loop, "dot"):
        return False
    is_quiet_loop = all(is_quiet(statement) for statement in loop.body)
    return is_quiet_loop and _loads_different_places(loop) and not _has_inner_loop(loop)


def _loads_different_places(loop: ast.For) -> bool:
    changing = {*stored_names(loop)}
    loads = [load for load in find_calls(loop, "load") if load.args]
    return any(names_in(load.args[0]) & changing for load in loads)


def _has_inner_loop(loop: ast.For) -> bool:
    return any(isinstance(n, ast.For) for statement in loop.body for n in ast.walk(statement))
