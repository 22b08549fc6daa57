"""KL235: tl.max_contiguous on an index whose alignment the compiler cannot see."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "max_contiguous" not in site.called_names:
        return
    for kernel in site.kernels:
        aligned = _aligned_values(kernel)
        for call, name in kernel.calls:
            if name != "max_contiguous" or not call.args or id(call) in aligned:
                continue
            hinted = kernel.resolve(call.args[0])
            if isinstance(hinted, ast.BinOp) and isinstance(hinted.op, ast.Mod):
                yield hit(
                    call,
                    "after % the compiler knows no alignment, and without it a contiguous tile "
                    "is still "
                    "loaded "
                    "element by element: tl.max_contiguous(tl.multiple_of(x, BLOCK), BLOCK)",
                )


def _aligned_values(kernel: KernelFacts) -> set[int]:
    """All that a tl.multiple_of is about: the hints may stand in either order."""
    hinted = [call.args[0] for call, name in kernel.calls if name == "multiple_of" and call.args]
    return {id(node) for value in hinted for node in kernel.reached(value)}


KL235 = Rule(
    id="KL235",
    name="contiguity-hint-alone",
    summary="tl.max_contiguous without tl.multiple_of on an index taken modulo a size",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
