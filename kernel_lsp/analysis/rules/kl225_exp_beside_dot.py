"""KL225: tl.exp of a scaled score in a loop of matrix products."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.tritonops import may_run_on_gpu
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    names = site.called_names
    if not {"exp", "dot"} <= names or "exp2" in names or not may_run_on_gpu(site):
        return
    for kernel in site.kernels:
        for call in _scores(kernel):
            yield hit(
                call,
                "tl.exp multiplies every element by log2(e) before the hardware's exp2: multiply "
                "the scale by 1.44269504 once and call tl.exp2",
            )


def _scores(kernel: KernelFacts) -> Iterator[ast.Call]:
    """Exponentials of scores in loops with a product, each once."""
    products = {id(call) for call, name in kernel.calls if name == "dot"}
    seen: set[int] = set()
    for loop in kernel.loops:
        inside = [n for n in walk(loop) if isinstance(n, ast.Call)]
        if not any(id(n) in products for n in inside):
            continue
        for call in inside:
            is_exponential = kernel.called(call) in ("exp", "math.exp")
            if id(call) not in seen and is_exponential and _is_score(kernel, call):
                seen.add(id(call))
                yield call


def _is_score(kernel: KernelFacts, call: ast.Call) -> bool:
    """A difference whose left side is a scaled product: the scale can take the factor."""
    node = kernel.resolve(call.args[0]) if call.args else None
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    score: ast.expr = node.left
    if isinstance(score, ast.Subscript):
        score = score.value
    bound = (
        [b.value for b in kernel.bindings.get(score.id, ())]
        if isinstance(score, ast.Name)
        else [score]
    )
    return any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)
        for value in bound
        for n in walk(value)
    ) and any(
        kernel.called(n) == "dot"
        for value in _reach_values(kernel, bound)
        for n in walk(value)
        if isinstance(n, ast.Call)
    )


def _reach_values(kernel: KernelFacts, values: list[ast.expr]) -> list[ast.expr]:
    """The values and what their names were bound to, one step."""
    names = {n.id for value in values for n in walk(value) if isinstance(n, ast.Name)}
    return values + [b.value for name in names for b in kernel.bindings.get(name, ())]


KL225 = Rule(
    id="KL225",
    name="exp-beside-dot",
    summary="tl.exp of a scaled score in a loop of products, where tl.exp2 is free",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
