"""KL302: gradients are filled with zeros at every step where they could be dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, is_literal, keyword, method
from kernel_lsp.analysis.source import walk


def _check(script: Script) -> Iterator[Hit]:
    if "zero_" not in script.file.text:
        return
    for call, _ in script.calls:
        if method(call) == "zero_grad" and is_literal(keyword(call, "set_to_none"), False):
            yield hit(
                call,
                "zero_grad(set_to_none=False) writes zeros into every gradient, and backward adds "
                "to them; "
                "with the default (True) backward writes them once",
            )
        elif (
            method(call) == "zero_"
            and _is_gradient(call.func)
            and _is_in_parameter_loop(script, call)
        ):
            yield hit(
                call,
                "gradients are zeroed one by one, a kernel for each parameter at every step; "
                "optimizer.zero_grad() drops them instead",
            )


def _is_gradient(function: ast.expr) -> bool:
    """``p.grad.zero_`` and ``p.grad.data.zero_``."""
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(function))


def _is_in_parameter_loop(script: Script, call: ast.Call) -> bool:
    around = list(script.around(call))
    function = script.function_of(call)
    if function is not None and function.name == "zero_grad":  # an optimizer's or wrapper's own
        return False
    return any(isinstance(n, ast.For) and "param" in ast.unparse(n.iter) for n in around)


KL302 = ScriptRule(
    id="KL302",
    name="gradients-zeroed-in-place",
    summary="gradients are filled with zeros where they could be dropped",
    severity="hint",
    check=_check,
)
