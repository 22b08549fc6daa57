"""KL216: a grid of n // BLOCK programs leaves the last partial block out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import names_in
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    for launch in site.launches:
        if any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(launch.launcher)
        ):
            continue  # the launcher looks at the remainder
        for number, axis in enumerate(launch.grid_axes() or ()):
            count = launch.resolve(axis)
            if isinstance(count, ast.BinOp) and isinstance(count.op, ast.FloorDiv):
                block = _block(site, launch, count.right)
                is_share = names_in(launch.resolve(count.right)) & names_in(count.left)
                if (
                    block
                    and not is_share
                    and _masks_the_rest(site, launch, number, count.left)
                    and _may_have_a_rest(launch, count.left)
                ):
                    yield hit(
                        axis,
                        f"{ast.unparse(count)} rounds down, so elements past the last full "
                        f"{block} are never "
                        "reached: use triton.cdiv",
                        parameter=block,
                    )


def _masks_the_rest(site: RuleSite, launch: LaunchExpression, axis: int, size: ast.expr) -> bool:
    """The kernel compares lanes of the axis with this size, so it reckons with a partial last
    block. Another bound, such as a row's own length, says nothing: what is divided may be
    padded."""
    kernel = site.kernels[0]
    wanted = ast.dump(launch.resolve(size))
    bounds = {
        name
        for name, given in launch.arguments.items()
        if ast.dump(launch.resolve(given)) == wanted
    }
    return any(
        isinstance(node, ast.Compare)
        and {"lanes", f"pid:{axis}"} <= kernel.atoms(node.left)
        and any(isinstance(bound, ast.Name) and bound.id in bounds for bound in node.comparators)
        for node in kernel.nodes
    )


def _block(site: RuleSite, launch: LaunchExpression, divisor: ast.expr) -> str | None:
    """The constexpr that the kernel receives the divisor as, or reads it from the tuned values."""
    kernel = site.kernels[0]
    for name in kernel.constexprs & launch.arguments.keys():
        given = launch.arguments[name]
        if isinstance(divisor, ast.Name | ast.Constant) and ast.dump(given) == ast.dump(divisor):
            return name
    match divisor:
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str(name))) if (
            name in kernel.constexprs
        ):
            return name
    return None


def _may_have_a_rest(launch: LaunchExpression, dividend: ast.expr) -> bool:
    """A plain size: ``n``, ``x.numel()``, ``x.shape[0]``. Sums and products may be rounded up
    already."""
    node = launch.resolve(dividend)
    match node:
        case (
            ast.Call(func=ast.Attribute(attr="numel" | "size"))
            | ast.Subscript(value=ast.Attribute(attr="shape"))
        ):
            return True
    return isinstance(node, ast.Name)


KL216 = Rule(
    id="KL216",
    name="grid-rounds-down",
    summary="a grid computed with // where the last block may be partial",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
