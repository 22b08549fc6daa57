"""KL207: masked lanes filled with a value that the reduction does not ignore."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, Site, hit
from kernel_lsp.analysis.rules.lanes import loaded_directly, reduces_masked_lanes, reductions
from kernel_lsp.analysis.rules.torchops import is_number
from kernel_lsp.records import TargetKind

_NEUTRAL = {
    "max": '-float("inf")',
    "argmax": '-float("inf")',
    "min": 'float("inf")',
    "argmin": 'float("inf")',
}


def _check(site: Site) -> Iterator[Hit]:
    for kernel in site.kernels:
        for reduction in reductions(kernel):
            load = loaded_directly(kernel, reduction.tile)
            if load is None or load.mask is None or load.other is None:
                continue
            if _is_wrong(kernel, reduction.name, load.other) and reduces_masked_lanes(
                kernel, reduction, load.mask
            ):
                neutral = _NEUTRAL.get(reduction.name, "0")
                yield hit(
                    load.call,
                    f"tl.{reduction.name} takes in the masked lanes, which hold {ast.unparse(load.other)}: "
                    f"its neutral element is {neutral}",
                    reduction=reduction.name,
                )


def _is_wrong(kernel: KernelFacts, name: str, other: ast.expr) -> bool:
    """Anything but zero adds to a sum; zero beats negatives in a maximum, if the kernel reckons with any."""
    if not is_number(other):
        return False
    value = ast.literal_eval(other)
    if name in _NEUTRAL:
        return value == 0 and _mentions_infinity(kernel, _NEUTRAL[name])
    return name == "sum" and value != 0


def _mentions_infinity(kernel: KernelFacts, infinity: str) -> bool:
    """The kernel starts a maximum from -inf elsewhere: its data are not known to be positive."""
    text = "-inf" if infinity.startswith("-") else "inf"
    return any(isinstance(n, ast.Constant) and n.value == text for n in kernel.nodes)


KL207 = Rule(
    id="KL207",
    name="wrong-neutral-element",
    summary="masked lanes filled with a value that the reduction takes in",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
