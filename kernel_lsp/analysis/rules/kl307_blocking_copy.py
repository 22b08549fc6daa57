"""KL307: a batch in pinned memory is copied while the CPU waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.rules.loaders import all_pinned, copies
from kernel_lsp.analysis.scripts import Script, keyword


def _check(script: Script) -> Iterator[Hit]:
    if not all_pinned(script):
        return
    for step in script.steps:
        found = [call for call in copies(step) if _waits(call)]
        if found:
            lines = sorted({call.lineno for call in found[1:]} - {found[0].lineno})
            more = f" (and line {', '.join(map(str, lines))})" if lines else ""
            yield hit(
                found[0],
                "the CPU waits for this copy although the loader pins its memory; "
                "non_blocking=True queues "
                f"it and goes on{more}",
                lines=lines,
            )


def _waits(call: ast.Call) -> bool:
    """It does not say non_blocking, by name or by position."""
    return len(call.args) < 2 and keyword(call, "non_blocking") is None


KL307 = ScriptRule(
    id="KL307",
    name="blocking-copy",
    summary="a batch in pinned memory is copied while the CPU waits",
    severity="hint",
    check=_check,
)
