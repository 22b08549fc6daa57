"""KL231: a row handled as one tile of fixed length, so that longer rows are cut off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import integer, walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.found.launchers:
        return
    kernel = site.kernels[0]
    for length, bound in _whole_rows(kernel):
        for launch in site.launches:
            given = launch.arguments.get(length)
            fixed = integer(launch.resolve(given)) if given is not None else None
            if given is None or fixed is None or _is_within(launch, bound, fixed):
                continue
            if not _checks(launch, given, fixed):
                yield hit(
                    given,
                    f"the kernel makes one tile of {fixed} elements for {bound} of them: whatever "
                    f"is beyond "
                    "is "
                    f"left out. Use triton.next_power_of_2, or a loop over the row",
                    parameter=length,
                    length=fixed,
                )


def _whole_rows(kernel: KernelFacts) -> set[tuple[str, str]]:
    """(constexpr, runtime bound) of ``lanes < bound`` where lanes is the range itself, on no
    loop's way."""
    if kernel.loops:
        return set()
    found = {pair for node in kernel.nodes if (pair := _row_below_bound(kernel, node)) is not None}
    # Another range of the same length that moves with the program covers the row in pieces.
    products = [n for n in kernel.nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    sides = [side for product in products for side in (product.left, product.right)]
    moving = {side.id for side in sides if isinstance(side, ast.Name)}
    return {(length, bound) for length, bound in found if length not in moving}


def _row_below_bound(kernel: KernelFacts, node: ast.AST) -> tuple[str, str] | None:
    match node:
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[ast.Name(id=bound)]) if (
            bound in kernel.parameters and bound not in kernel.constexprs
        ):
            lanes = kernel.resolve(left)
            match lanes:
                case ast.Call(args=[_, ast.Name(id=length)]) if (
                    kernel.called(lanes) == "arange" and length in kernel.constexprs
                ):
                    return length, bound
    return None


def _is_within(launch: LaunchExpression, bound: str, fixed: int) -> bool:
    """The row is passed with a length that fits, or that the launcher limits."""
    given = launch.arguments.get(bound)
    row = None if given is None else launch.resolve(given)
    is_limited = any(isinstance(n, ast.Name) and n.id == "min" for n in walk(row)) if row else False
    number = integer(row)
    return is_limited or (number is not None and number <= fixed)


def _checks(launch: LaunchExpression, given: ast.expr, fixed: int) -> bool:
    """The launcher compares or limits something, or says the length elsewhere: ``x.view(-1,
    1024)``."""
    own = launch.resolve(given)
    return any(
        (
            isinstance(n, ast.Compare)
            and any(isinstance(o, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for o in n.ops)
        )
        or (isinstance(n, ast.Constant) and n.value == fixed and n is not own)
        for n in walk(launch.launcher)
    )


KL231 = Rule(
    id="KL231",
    name="row-cut-off",
    summary="a fixed tile for a row of any length",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
