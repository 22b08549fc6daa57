"""KL221: num_stages on a kernel that has no loop to pipeline."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import TRANSPARENT
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import integer
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    configs = [c.node for c in (tuning.configs or ())] if tuning else []
    staged = [next(_stages(call), None) for call in configs]
    first_config = next((keyword for keyword in staged if keyword), None)
    launched = [k for launch in site.launches for k in _stages(launch.call)]
    found = [k for k in (first_config, *launched) if k]
    if not found or not _is_straight(site):
        return
    for keyword in found:
        yield hit(
            keyword,
            "num_stages is the depth of a loop's pipeline, and this kernel has no loop: it "
            "changes nothing",
        )


def _stages(call: ast.Call) -> Iterator[ast.keyword]:
    yield from (k for k in call.keywords if k.arg == "num_stages" and (integer(k.value) or 0) > 1)


def _is_straight(site: RuleSite) -> bool:
    """No loop in the kernel or its helpers, and no call of a function that is not in this file."""
    if any(kernel.loops for kernel in site.kernels):
        return False
    known = {f.name for f in site.functions} | TRANSPARENT
    return not any(
        name is None and _may_have_a_loop(site, call, known)
        for kernel in site.kernels
        for call, name in kernel.calls
    )


def _may_have_a_loop(site: RuleSite, call: ast.Call, known: frozenset[str] | set[str]) -> bool:
    """A function of another file, by its name or by its module's; one of a number alone knows no
    data."""
    if isinstance(call.func, ast.Name):
        return call.func.id not in known
    given = (*call.args, *(k.value for k in call.keywords))
    return site.file.dotted(call.func) is not None and any(integer(one) is None for one in given)


KL221 = Rule(
    id="KL221",
    name="stages-without-loop",
    summary="num_stages on a kernel without a loop",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
    unnecessary=True,
)
