"""KL239: tl.static_range over a value that is known only when the kernel runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "static_range" not in site.called_names or not site.found.launchers:
        return
    kernel = site.kernels[0]
    runtime = set(kernel.parameters) - kernel.constexprs - kernel.bindings.keys()
    for call, name in kernel.calls:
        if name == "static_range":
            for bound in call.args:
                if isinstance(bound, ast.Name) and bound.id in runtime:
                    yield hit(
                        bound,
                        f"tl.static_range unrolls while compiling, and {bound.id} is known only "
                        f"at the "
                        "launch: "
                        "annotate it with tl.constexpr, or use range",
                        parameter=bound.id,
                    )


KL239 = Rule(
    id="KL239",
    name="static-range-over-argument",
    summary="tl.static_range over an argument that is no constexpr",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
