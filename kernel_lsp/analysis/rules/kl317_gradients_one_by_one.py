"""KL317: norms or clipping of gradients, a few kernels (and often a wait) for each parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, callee, each_time, is_literal, keyword, method
from kernel_lsp.analysis.source import walk

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")


def _check(script: Script) -> Iterator[Hit]:
    for call, _ in script.constructed(*_CLIPS):
        is_chosen = any(isinstance(n, ast.If | ast.IfExp) for n in script.around(call))
        if is_literal(keyword(call, "foreach"), False) and not is_chosen:
            yield hit(
                call,
                "foreach=False makes several kernels for each gradient; the default takes many "
                "at once",
            )
    if ".grad" not in script.file.text:
        return
    for statement in _statements(script):
        if isinstance(statement, ast.For) and "parameters" in ast.unparse(statement.iter):
            yield from _loop(statement)


def _statements(script: Script) -> Iterator[ast.stmt]:
    """Of every step, and of functions of the file that a step calls each time."""
    by_name = {f.name: f for f in script.functions}
    own = {id(step.owner) for step in script.training}
    called = {}
    for step in script.training:
        yield from step.statements
        for _, call in step.calls():
            function = by_name.get(callee(call) or "")
            if function is not None and id(function) not in own:
                called[function.name] = function
    for function in called.values():
        yield from each_time(function.body)


def _loop(loop: ast.For) -> Iterator[Hit]:
    targets = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    calls = [n for statement in loop.body for n in walk(statement) if isinstance(n, ast.Call)]
    norm = next((c for c in calls if _is_of_gradient(c, targets, "norm")), None)
    clamp = next((c for c in calls if _is_of_gradient(c, targets, "clamp_")), None)
    if norm is not None:
        waits = any(method(c) == "item" for c in calls)
        why = ", and the CPU waits for each (.item())" if waits else ""
        yield hit(
            norm,
            f"the norm of the gradients is taken parameter by parameter{why}; "
            "torch.nn.utils.get_total_norm and clip_grad_norm_ take all of them at once",
        )
    elif clamp is not None:
        yield hit(
            clamp,
            "gradients are clipped parameter by parameter; torch.nn.utils.clip_grad_value_ takes "
            "all at once",
        )


def _is_of_gradient(call: ast.Call, targets: set[str], name: str) -> bool:
    if method(call) != name:
        return False
    nodes = list(walk(call))
    has_grad = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in nodes)
    return has_grad and any(isinstance(n, ast.Name) and n.id in targets for n in nodes)


KL317 = ScriptRule(
    id="KL317",
    name="gradients-one-by-one",
    summary="gradients are measured or clipped parameter by parameter",
    severity="hint",
    check=_check,
)
