"""KL219: an atomic addition that orders memory although nothing waits for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, PointerAccess
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import integer
from kernel_lsp.records import TargetKind

_SYNCHRONIZING = frozenset({"atomic_cas", "atomic_xchg", "debug_barrier"})


def _check(site: RuleSite) -> Iterator[Hit]:
    names = {name for kernel in site.kernels for _, name in kernel.calls}
    if "atomic_add" not in names or names & _SYNCHRONIZING:
        return
    kernel = site.kernels[0]
    additions = [a for a in kernel.accesses if a.name.startswith("atomic_")]
    loaded = _loaded_tensors(kernel)
    if None in loaded or not _are_discarded(kernel, additions):
        return  # a result that is used may be a ticket that others wait for
    stores = any(a.name == "store" for a in kernel.accesses)
    for access in additions:
        # One more after what was stored may be a signal: who waits for it must see the store.
        if stores and _may_signal(kernel, access):
            continue
        if _is_plain_addition(access) and kernel.base(access.pointer) not in (None, *loaded):
            yield hit(
                access.call,
                "tl.atomic_add is acquire-release by default, which orders all memory around each "
                "addition; "
                'nothing here waits for it: sem="relaxed"',
            )
            return  # what holds for one holds for all of the kernel


def _loaded_tensors(kernel: KernelFacts) -> set[str | None]:
    return {kernel.base(access.pointer) for access in kernel.accesses if access.is_load}


def _are_discarded(kernel: KernelFacts, accesses: list[PointerAccess]) -> bool:
    discarded = {id(n.value) for n in kernel.nodes if isinstance(n, ast.Expr)}
    return all(id(access.call) in discarded for access in accesses)


def _is_plain_addition(access: PointerAccess) -> bool:
    """Without an order or a scope of its own."""
    keywords = {keyword.arg for keyword in access.call.keywords}
    is_plain = not keywords & {"sem", "scope"} and len(access.call.args) < 4
    return access.name == "atomic_add" and is_plain


def _may_signal(kernel: KernelFacts, addition: PointerAccess) -> bool:
    """A fixed number at one place; many places are a histogram."""
    is_fixed = addition.value is not None and integer(addition.value) is not None
    return is_fixed and not {"lanes", "memory"} & kernel.atoms(addition.pointer)


KL219 = Rule(
    id="KL219",
    name="atomic-without-relaxed",
    summary="an atomic addition with acquire-release order that nothing needs",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
