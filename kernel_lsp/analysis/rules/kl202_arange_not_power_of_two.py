"""KL202: tl.arange over a length that is no power of two does not compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import language_name
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.tritonops import known_values, may_run_on_gpu
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "arange" not in site.called_names or not may_run_on_gpu(site):
        return
    for function in site.functions:
        for node in (n for statement in function.body for n in walk(statement)):
            if not isinstance(node, ast.Call) or language_name(site.file, node.func) != "arange":
                continue
            if len(node.args) != 2:
                continue
            starts = known_values(site, function, node.args[0])
            ends = known_values(site, function, node.args[1])
            wrong = sorted(
                {end - start for start in starts for end in ends if not _is_power(end - start)}
            )
            if wrong:
                yield hit(
                    node,
                    f"tl.arange of {wrong[0]} elements does not compile: the length must be a "
                    f"power of two "
                    "(use triton.next_power_of_2 and a mask)",
                    lengths=wrong,
                )


def _is_power(length: int) -> bool:
    return length > 0 and length & (length - 1) == 0


KL202 = Rule(
    id="KL202",
    name="arange-not-power-of-two",
    summary="tl.arange over a length that is no power of two",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
