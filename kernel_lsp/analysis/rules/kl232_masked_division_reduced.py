"""KL232: a division by masked lanes that hold zero, and a reduction that takes the quotient in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.masked_lanes import (
    ReductionCall,
    cast_operand,
    loaded_directly,
    parts,
    reduces_masked_lanes,
    reductions,
)
from kernel_lsp.analysis.rules.torchops import is_number
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for kernel in site.kernels:
        for reduction in reductions(kernel):
            for division in _poisoned_quotients(kernel, reduction):
                yield hit(
                    division,
                    f"masked lanes divide by zero here, and tl.{reduction.name} takes the "
                    f"infinity or NaN "
                    "in: "
                    "load the divisor with other=1.0, or choose with tl.where before reducing",
                    reduction=reduction.name,
                )


def _poisoned_quotients(kernel: KernelFacts, reduction: ReductionCall) -> Iterator[ast.expr]:
    """Quotients whose divisor is a load filled with zeros, reached through arithmetic only."""
    for node in parts(kernel, reduction.tile, _operands):
        match node:
            case ast.BinOp(op=ast.Div(), right=right):
                mask = _mask_of_zeros(kernel, right)
                if mask is not None and reduces_masked_lanes(kernel, reduction, mask):
                    yield node


def _operands(node: ast.expr) -> list[ast.expr]:
    """Where an infinity would come from: not what divides."""
    match node:
        case ast.BinOp(left=left, op=ast.Div()):
            return [left]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return [left, right]
        case ast.Call() if (inner := cast_operand(node)) is not None:
            return [inner]
    return []


def _mask_of_zeros(kernel: KernelFacts, divisor: ast.expr) -> ast.expr | None:
    """The mask of a load whose other lanes hold zero."""
    load = loaded_directly(kernel, divisor)
    if load is None or load.other is None or not is_number(load.other):
        return None
    return load.mask if ast.literal_eval(load.other) == 0 else None


KL232 = Rule(
    id="KL232",
    name="masked-division-reduced",
    summary="a division by masked lanes that hold zero, reduced afterwards",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
