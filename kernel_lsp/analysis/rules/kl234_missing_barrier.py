"""KL234: memory that a program stores and reads back in another order, with no barrier between."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, PointerAccess
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.tritonops import may_run_on_gpu
from kernel_lsp.records import TargetKind

_BARRIERS = frozenset({"debug_barrier", "inline_asm_elementwise", "atomic_cas", "atomic_xchg"})


def _check(site: RuleSite) -> Iterator[Hit]:
    kernel = site.kernels[0]
    if any(name in _BARRIERS for facts in site.kernels for _, name in facts.calls):
        return
    reported: set[int] = set()
    for position, store in enumerate(kernel.accesses):
        if store.name != "store":
            continue
        for load in kernel.accesses[position + 1 :]:
            if id(load.call) not in reported and _reads_back(kernel, store, load):
                if not may_run_on_gpu(site):
                    return
                reported.add(id(load.call))
                base = kernel.base(load.pointer)
                yield hit(
                    load.call,
                    f"threads of one program store to {base} above and read each other's elements "
                    f"here: put "
                    "tl.debug_barrier() between",
                    parameter=base,
                )


def _reads_back(kernel: KernelFacts, store: PointerAccess, load: PointerAccess) -> bool:
    """The same memory through lanes of another order, one after the other."""
    base = kernel.base(load.pointer)
    if (
        not load.is_load
        or base is None
        or base != kernel.base(store.pointer)
        or store.block != load.block
    ):
        return False
    written, read = _terms(kernel, store.pointer), _terms(kernel, load.pointer)
    # Terms that both have in common are the place; what remains is the order of the lanes.
    for term in set(written) & set(read):
        written.pop(term)
        read.pop(term)
    return _permutes(kernel, list(written.values()), list(read.values()))


def _terms(kernel: KernelFacts, pointer: ast.expr) -> dict[str, ast.expr]:
    """Summands of an address, names resolved."""
    found: dict[str, ast.expr] = {}
    queue = [pointer]
    seen: set[int] = set()
    while queue:
        node = kernel.resolve(queue.pop())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            queue += [node.left, node.right] if id(node) not in seen else []
            seen.add(id(node))
        else:
            found[ast.dump(node)] = node
    return found


def _permutes(kernel: KernelFacts, written: list[ast.expr], read: list[ast.expr]) -> bool:
    """One lane term each, of which one is computed from the other's range: ``lanes`` and ``lanes ^
    4``."""
    if len(written) != 1 or len(read) != 1:
        return False
    plain, shuffled = written[0], read[0]
    if kernel.called(plain) != "arange":
        plain, shuffled = shuffled, plain
    return (
        kernel.called(plain) == "arange"
        and kernel.called(shuffled) != "arange"
        and isinstance(shuffled, ast.BinOp)
        and isinstance(shuffled.op, ast.BitXor | ast.Mod | ast.Sub)
        and "lanes" in kernel.atoms(shuffled)
    )


KL234 = Rule(
    id="KL234",
    name="missing-barrier",
    summary="memory stored and read back in another order without tl.debug_barrier",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
