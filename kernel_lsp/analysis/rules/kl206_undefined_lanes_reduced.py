"""KL206: a reduction over lanes that a masked load left undefined."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.masked_lanes import (
    ReductionCall,
    masked_loads,
    reduces_masked_lanes,
    reductions,
)
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        for reduction in reductions(kernel):
            for load in masked_loads(kernel, reduction.tile):
                if load.other is not None or load.mask is None:
                    continue
                if not reduces_masked_lanes(kernel, reduction, load.mask):
                    continue
                if _reaches_the_next_round_only(kernel, reduction):
                    continue
                yield hit(
                    load.call,
                    f"lanes outside the mask are undefined without other=, and tl.{reduction.name} "
                    "takes them in: pass the reduction's neutral element",
                    reduction=reduction.name,
                )


def _reaches_the_next_round_only(kernel: KernelFacts, reduction: ReductionCall) -> bool:
    """A running sum that only the loop itself reads: its last round, the masked one, has no
    next."""
    for name, bound in kernel.bindings.items():
        for binding in bound:
            if binding.loops and any(n is reduction.call for n in walk(binding.value)):
                inside = {id(n) for n in walk(binding.loops[-1])}
                outside = (
                    n for n in kernel.nodes if isinstance(n, ast.Name) and id(n) not in inside
                )
                return not any(
                    n.id == name and isinstance(n.ctx, ast.Load) for n in outside
                ) and any(b.loops != binding.loops for b in bound)
    return False


KL206 = Rule(
    id="KL206",
    name="undefined-lanes-reduced",
    summary="a masked load without other= that feeds a reduction",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
