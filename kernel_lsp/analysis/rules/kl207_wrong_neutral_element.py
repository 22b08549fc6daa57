"""KL207: masked lanes filled with a value that the reduction does not ignore."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.masked_lanes import (
    ReductionCall,
    loaded_directly,
    reduces_masked_lanes,
    reductions,
)
from kernel_lsp.analysis.rules.torchops import is_number
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind

_NEUTRAL = {
    "max": '-float("inf")',
    "argmax": '-float("inf")',
    "min": 'float("inf")',
    "argmin": 'float("inf")',
}


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        for reduction in reductions(kernel):
            load = loaded_directly(kernel, reduction.tile)
            if load is None or load.mask is None or load.other is None:
                continue
            if _is_wrong(kernel, reduction, load.other) and reduces_masked_lanes(
                kernel, reduction, load.mask
            ):
                neutral = _NEUTRAL.get(reduction.name, "0")
                yield hit(
                    load.call,
                    f"tl.{reduction.name} takes in the masked lanes, which hold "
                    f"{ast.unparse(load.other)}: "
                    f"its neutral element is {neutral}",
                    reduction=reduction.name,
                )


def _is_wrong(kernel: KernelFacts, reduction: ReductionCall, other: ast.expr) -> bool:
    """Anything but zero adds to a sum; zero beats negatives in a maximum that starts from -inf."""
    if not is_number(other):
        return False
    value = ast.literal_eval(other)
    if reduction.name in _NEUTRAL:
        return value == 0 and _goes_on_from_infinity(kernel, reduction)
    return reduction.name == "sum" and value != 0


def _goes_on_from_infinity(kernel: KernelFacts, reduction: ReductionCall) -> bool:
    """``best = tl.maximum(best, tl.max(x))`` with best = -inf at first: the data may be of either
    sign."""
    for call, name in kernel.calls:
        if name in ("maximum", "minimum") and any(
            kernel.resolve(a) is reduction.call for a in call.args
        ):
            starts = [
                b.value
                for a in call.args
                if isinstance(a, ast.Name)
                for b in kernel.bindings.get(a.id, ())
            ]
            if any(
                isinstance(n, ast.Constant) and n.value in ("inf", "-inf")
                for s in starts
                for n in walk(s)
            ):
                return True
    return False


KL207 = Rule(
    id="KL207",
    name="wrong-neutral-element",
    summary="masked lanes filled with a value that the reduction takes in",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
