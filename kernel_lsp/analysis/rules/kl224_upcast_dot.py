"""KL224: operands of tl.dot that are cast to float32 first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit
from kernel_lsp.analysis.rules.masked_lanes import cast_operand
from kernel_lsp.analysis.rules.tritonops import may_run_on_gpu
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "dot" not in site.called_names or not may_run_on_gpu(site):
        return
    for kernel in site.kernels:
        for call, name in kernel.calls:
            if name != "dot" or any(
                k.arg in ("input_precision", "allow_tf32", None) for k in call.keywords
            ):
                continue
            operands = (argument(call, 0, "input"), argument(call, 1, "other"))
            if (
                all(o is not None and _is_upcast_load(kernel, o) for o in operands)
                and len(call.args) < 4
            ):
                yield hit(
                    call,
                    "tiles that were cast to float32 run as TF32, at half the speed of bfloat16 "
                    "and with no "
                    "digit more: "
                    'pass them as they were loaded, or say input_precision="ieee" where float32 '
                    "is meant",
                )


def _is_upcast_load(kernel: KernelFacts, node: ast.expr) -> bool:
    """``tl.load(...).to(tl.float32)``, transposed or not."""
    node = kernel.resolve(node)
    if kernel.called(node) == "trans" and isinstance(node, ast.Call) and node.args:
        node = kernel.resolve(node.args[0])
    if not isinstance(node, ast.Call) or (operand := cast_operand(node)) is None or not node.args:
        return False
    is_float32 = (kernel.file.dotted(node.args[0]) or "") == "triton.language.float32"
    return is_float32 and kernel.called(kernel.resolve(operand)) == "load"


KL224 = Rule(
    id="KL224",
    name="upcast-dot",
    summary="operands of tl.dot cast to float32, which run as TF32",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
