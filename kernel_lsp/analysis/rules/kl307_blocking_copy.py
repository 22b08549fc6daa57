"""KL307: a batch in pinned memory is copied while the CPU waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.rules.loaders import all_pinned
from kernel_lsp.analysis.scripts import Script, Step, keyword, method
from kernel_lsp.analysis.source import walk


def _check(script: Script) -> Iterator[Hit]:
    if not all_pinned(script):
        return
    for step in script.steps:
        found = list(_copies(step))
        if found:
            lines = sorted({call.lineno for call in found[1:]} - {found[0].lineno})
            more = f" (and line {', '.join(map(str, lines))})" if lines else ""
            yield hit(
                found[0],
                "the CPU waits for this copy although the loader pins its memory; non_blocking=True queues "
                f"it and goes on{more}",
                lines=lines,
            )


def _copies(step: Step) -> Iterator[ast.Call]:
    if not isinstance(step.owner, ast.For):
        return
    batch = {n.id for n in walk(step.owner.target) if isinstance(n, ast.Name)}
    for _, call in step.calls():
        if _moves(call) and _root(call.func) in batch and keyword(call, "non_blocking") is None:
            yield call


def _moves(call: ast.Call) -> bool:
    """``.cuda()`` and ``.to(device)``; a second positional argument may be non_blocking itself."""
    if method(call) == "cuda":
        return len(call.args) < 2
    return method(call) == "to" and len(call.args) == 1 and "dev" in ast.unparse(call.args[0])


def _root(node: ast.expr) -> str | None:
    """``batch`` of ``batch[0].to`` and ``batch["x"].to``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


KL307 = ScriptRule(
    id="KL307",
    name="blocking-copy",
    summary="a batch in pinned memory is copied while the CPU waits",
    severity="hint",
    check=_check,
)
