"""KL315: an evaluation loop records a graph that nobody differentiates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, ScriptLoop, each_time, method, own_nodes, same_scope
from kernel_lsp.analysis.source import FunctionNode

_OFF = re.compile(
    r"no_grad|inference_mode|set_grad_enabled|requires_grad|GradMode|autograd|backward"
)


def _check(script: Script) -> Iterator[Hit]:
    if ".eval()" not in script.file.text:
        return
    for owner, loops in script.scopes:
        body = owner.body
        modules = _evaluated_names(body)
        if not modules:
            continue
        around = ast.unparse(owner) if isinstance(owner, FunctionNode) else script.file.text
        if _OFF.search(around) or (
            isinstance(owner, FunctionNode) and not _is_called_with_grad(script, owner)
        ):
            continue
        for loop in loops:
            if (call := _calls(loop, modules)) is not None:
                yield hit(
                    call,
                    "this evaluates with gradients recorded: every activation is kept until the "
                    "result is "
                    "gone; torch.inference_mode() (or no_grad) around it keeps none",
                )
                break


def _evaluated_names(body: list[ast.stmt]) -> dict[str, int]:
    """What ``.eval()`` was called on -> line."""
    return {
        ast.unparse(node.func.value): node.lineno
        for statement in body
        for node in same_scope(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and method(node) == "eval"
        if not node.args
    }


def _calls(loop: ScriptLoop, modules: dict[str, int]) -> ast.Call | None:
    for statement in each_time(loop.body):
        for node in own_nodes(statement):
            if isinstance(node, ast.Call):
                line = modules.get(ast.unparse(node.func))
                if line is not None and line < node.lineno:
                    return node
    return None


def _is_called_with_grad(script: Script, function: FunctionNode) -> bool:
    """The file calls it, and nowhere under a context or in a function that switches gradients
    off."""
    calls = [c for c, _ in script.calls if _name(c) == function.name]
    return bool(calls) and not any(_is_off_around(script, call) for call in calls)


def _is_off_around(script: Script, call: ast.Call) -> bool:
    for node in script.around(call):
        if isinstance(node, ast.With) and any(_OFF.search(ast.unparse(i)) for i in node.items):
            return True
        if isinstance(node, FunctionNode) and any(
            _OFF.search(ast.unparse(d)) for d in node.decorator_list
        ):
            return True
    return False


def _name(call: ast.Call) -> str | None:
    return getattr(call.func, "id", None) or method(call)


KL315 = ScriptRule(
    id="KL315",
    name="evaluation-records-graph",
    summary="an evaluation loop records gradients",
    severity="hint",
    check=_check,
)
