"""KL240: a number of rows along the second or third axis of the grid, which ends at 65,535."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for launch in site.launches:
        for axis in (launch.grid_axes() or [])[1:]:
            if _counts_elements(launch, axis) and not _is_compared(launch, axis):
                yield hit(
                    axis,
                    "the second and third axis of a grid end at 65,535 programs, and the "
                    "launch fails "
                    "beyond: put "
                    "what grows with the data first",
                )


def _counts_elements(launch: LaunchExpression, axis: ast.expr) -> bool:
    """``x.numel() // n``: as many programs as the data has rows."""
    node = launch.resolve(axis)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv):
        return False
    total = launch.resolve(node.left)
    return (
        isinstance(total, ast.Call)
        and isinstance(total.func, ast.Attribute)
        and total.func.attr == "numel"
    )


def _is_compared(launch: LaunchExpression, axis: ast.expr) -> bool:
    wanted = ast.dump(axis)
    return any(
        isinstance(n, ast.Compare)
        and any(ast.dump(side) == wanted for side in (n.left, *n.comparators))
        for n in walk(launch.launcher)
    )


KL240 = Rule(
    id="KL240",
    name="grid-axis-limit",
    summary="a number of rows along a grid axis that ends at 65,535",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
