"""KL313: the loop waits for the whole device at every step, and nothing is timed there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_TIMED = re.compile(
    r"\btime\b|perf_counter|monotonic|elapsed|Event\(|[Tt]imer|timeit|profil|bench", re.IGNORECASE
)


def _check(script: Script) -> Iterator[Hit]:
    if "synchronize" not in script.file.text:
        return
    for step in script.steps:
        around = step.function or step.owner
        if _TIMED.search(ast.unparse(around)):
            continue
        for _, call in step.calls():
            if script.file.dotted(call.func) in (
                "torch.cuda.synchronize",
                "torch.accelerator.synchronize",
            ):
                yield hit(
                    call,
                    "synchronize() at every step makes the CPU wait for everything that is queued; "
                    "results are ordered without it, and only timing needs it",
                )


KL313 = ScriptRule(
    id="KL313",
    name="synchronize-every-step",
    summary="the loop waits for the device at every step",
    severity="hint",
    check=_check,
)
