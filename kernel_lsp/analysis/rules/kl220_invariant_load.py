"""KL220: a load that gives the same in each round of a loop, and that the compiler cannot move
out.

Triton moves such loads out of loops that write no memory; one store in the loop keeps it from
doing so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, KernelLoop, PointerAccess, names_in
from kernel_lsp.analysis.launches import shared_tensors
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        if not kernel.loops:
            continue
        shared = shared_tensors(site.launches) if kernel is site.kernels[0] else {}
        for access in kernel.accesses:
            if (
                access.is_load
                and access.loops
                and _is_invariant(kernel, access, access.loops[-1], shared)
            ):
                yield hit(
                    access.call,
                    "this load gives the same in every round, and the loop's stores keep the "
                    "compiler from "
                    "moving "
                    "it out: load it once before the loop",
                )


def _is_invariant(
    kernel: KernelFacts, access: PointerAccess, loop: KernelLoop, shared: dict[str, set[str]]
) -> bool:
    if not isinstance(loop, ast.For) or kernel.called(loop.iter) == "static_range":
        return False
    if _is_opaque(kernel, access) or _may_synchronize(kernel, loop):
        return False
    inside = [a for a in kernel.accesses if loop in a.loops]
    written = {kernel.base(a.pointer) for a in inside if not a.is_load}
    base = kernel.base(access.pointer)
    if not written or None in written or base is None or {base, *shared.get(base, ())} & written:
        return False
    return not _reads_changing(kernel, access, loop) and not _reads_memory(access)


def _is_opaque(kernel: KernelFacts, access: PointerAccess) -> bool:
    is_volatile = any(k.arg == "volatile" for k in access.call.keywords)
    return is_volatile or "opaque" in kernel.atoms(access.call)


def _reads_changing(kernel: KernelFacts, access: PointerAccess, loop: ast.For) -> bool:
    """It, or a condition in the loop under which it runs, has a name that the loop sets: what runs
    in some rounds only may run in one."""
    changing = {
        name for name, bound in kernel.bindings.items() if any(loop in b.loops for b in bound)
    }
    conditions = [test for test in access.tests if any(test is n for n in walk(loop))]
    read = names_in(access.call).union(*(names_in(test) for test in conditions))
    return bool(read & changing)


def _may_synchronize(kernel: KernelFacts, loop: ast.For) -> bool:
    """A barrier, or a call of something that is not part of the language."""
    calls = (n for n in walk(loop) if isinstance(n, ast.Call))
    return any(
        kernel.called(c) in ("debug_barrier", "inline_asm_elementwise")
        or (kernel.called(c) is None and isinstance(c.func, ast.Name) and c is not loop.iter)
        for c in calls
    )


def _reads_memory(access: PointerAccess) -> bool:
    """A load inside the address may change with the loop's stores."""
    return any(isinstance(n, ast.Call) and n is not access.call for n in walk(access.pointer))


KL220 = Rule(
    id="KL220",
    name="invariant-load",
    summary="a load that gives the same in each round of a loop that stores",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
