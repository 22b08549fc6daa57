"""KL312: memory is given back, or Python's garbage collected, at every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, each_time, own_nodes

_WHY = {
    "torch.cuda.empty_cache": "torch.cuda.empty_cache() at every step waits for the GPU and hands "
    "its memory "
    "back, so that the next step asks the driver for it again",
    "gc.collect": "gc.collect() at every step walks all of Python's objects while nothing "
    "is queued",
}


def _check(script: Script) -> Iterator[Hit]:
    if "empty_cache" not in script.file.text and "gc.collect" not in script.file.text:
        return
    found: dict[int, Hit] = {}
    for statement in _statements(script):
        for node in own_nodes(statement):
            dotted = script.file.dotted(node.func) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and dotted in _WHY:
                found[id(node)] = hit(node, _WHY[dotted], function=dotted)
    yield from found.values()


def _statements(script: Script) -> Iterator[ast.stmt]:
    for function in script.functions:
        if function.name == "forward":
            yield from each_time(function.body)
    for step in script.steps:
        yield from step.statements


KL312 = ScriptRule(
    id="KL312",
    name="cache-emptied-every-step",
    summary="memory is given back at every step",
    severity="hint",
    check=_check,
)
