"""KL238: a launch that passes a value which autotuning sets."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    if tuning is None or not tuning.configs:
        return
    tuned = {name for config in tuning.configs for name in (*config.values, *config.options)}
    for launch in site.launches:
        for keyword in launch.call.keywords:
            if keyword.arg in tuned:
                yield hit(
                    keyword,
                    f"autotuning sets {keyword.arg} itself, and Triton refuses a second value: "
                    f"leave it out "
                    "here",
                    parameter=keyword.arg,
                )


KL238 = Rule(
    id="KL238",
    name="tuned-argument-passed",
    summary="a launch that passes what the autotune configurations set",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
