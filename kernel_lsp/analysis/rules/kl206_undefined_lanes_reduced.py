"""KL206: a reduction over lanes that a masked load left undefined."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, Site, hit
from kernel_lsp.analysis.rules.lanes import masked_loads, reduces_masked_lanes, reductions
from kernel_lsp.records import TargetKind


def _check(site: Site) -> Iterator[Hit]:
    for kernel in site.kernels:
        for reduction in reductions(kernel):
            for load in masked_loads(kernel, reduction.tile):
                if load.other is None and load.mask and reduces_masked_lanes(kernel, reduction, load.mask):
                    yield hit(
                        load.call,
                        f"lanes outside the mask are undefined without other=, and tl.{reduction.name} "
                        "takes them in: pass the reduction's neutral element",
                        reduction=reduction.name,
                    )


KL206 = Rule(
    id="KL206",
    name="undefined-lanes-reduced",
    summary="a masked load without other= that feeds a reduction",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
