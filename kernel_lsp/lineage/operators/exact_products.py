"""Products in float32, one by one, instead of half types or TF32 on tensor cores."""

from __future__ import annotations

import ast

from kernel_lsp.lineage.places import floats, innermost
from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

REPLACED = ("input_precision", "allow_tf32", "out_dtype", "max_num_imprecise_acc")


def match(kernel: Kernel) -> list[KernelMatch]:
    """All products (tl.dot) that are not exact in float32."""
    found = [
        c
        for c in innermost(find_calls(kernel.function, "dot"))
        if len(c.args) >= 2 and not _is_exact(c)
    ]
    return (
        [
            KernelMatch(
                f"{len(found)} of tl.dot", "float32 products without tensor cores", data=found
            )
        ]
        if found
        else []
    )


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Tensors are floats, and sums are kept in float32."""
    return [floats(kernel), proof("sums are kept in float32", True, f"{len(match.data)} products")]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Cast both operands to float32 and ask for IEEE products."""
    tl = language(kernel) or "tl"
    for call in match.data:
        operands = [f"{_base(kernel, a)}.to({tl}.float32)" for a in call.args[:2]]
        rest = [kernel.text(a) for a in call.args[2:3]]
        rest += [kernel.text(k) for k in call.keywords if k.arg not in REPLACED]
        made = ", ".join([*operands, *rest, 'input_precision="ieee"'])
        kernel.replace(call, f"{kernel.text(call.func)}({made})")


def _base(kernel: Kernel, operand: ast.expr) -> str:
    """Without a cast to a narrower type."""
    if (
        isinstance(operand, ast.Call)
        and isinstance(operand.func, ast.Attribute)
        and operand.func.attr == "to"
    ):
        operand = operand.func.value
    simple = isinstance(operand, ast.Name | ast.Call | ast.Subscript | ast.Attribute)
    return kernel.text(operand) if simple else f"({kernel.text(operand)})"


def _is_exact(call: ast.Call) -> bool:
    return any(
        k.arg == "input_precision" and ast.unparse(k.value) == "'ieee'" for k in call.keywords
    )
