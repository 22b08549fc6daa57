"""KL230: a load with other= and no mask does not compile."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        for access in kernel.accesses:
            has_mask = len(access.call.args) > 1 or any(
                k.arg == "mask" for k in access.call.keywords
            )
            if access.is_load and access.other is not None and not has_mask:
                yield hit(
                    access.call,
                    "tl.load refuses other= without a mask: pass the mask that it fills, or leave "
                    "other out",
                )


KL230 = Rule(
    id="KL230",
    name="other-without-mask",
    summary="tl.load with other= and no mask",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
