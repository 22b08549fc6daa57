"""KL233: a tl.where that fills lanes which the load has filled already."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, names_in
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.masked_lanes import loaded_directly
from kernel_lsp.analysis.rules.torchops import is_number
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "where" not in site.called_names:
        return
    for kernel in site.kernels:
        for call, name in kernel.calls:
            if name != "where" or len(call.args) != 3:
                continue
            mask, tile, filler = call.args
            load = loaded_directly(kernel, tile)
            if load is None or load.mask is None or load.other is None:
                continue
            if not all(_is_settled(kernel, name) for name in names_in(mask)):
                continue
            if (
                ast.dump(load.mask) == ast.dump(mask)
                and _value(load.other) == _value(filler) is not None
            ):
                yield hit(
                    call,
                    f"the load has filled the lanes outside this mask with {ast.unparse(filler)} "
                    f"already: "
                    "tl.where only repeats it",
                )


def _is_settled(kernel: KernelFacts, name: str) -> bool:
    """Bound once, so that it means the same at the load and here."""
    return len(kernel.bindings.get(name, ())) + (name in kernel.parameters) <= 1


def _value(node: ast.expr) -> float | None:
    """Number of a literal, ``float("-inf")`` included."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand)
            return None if value is None else -value
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return {"inf": float("inf"), "-inf": float("-inf")}.get(text)
    return float(ast.literal_eval(node)) if is_number(node) else None


KL233 = Rule(
    id="KL233",
    name="redundant-where",
    summary="a tl.where that repeats what the load filled in",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
