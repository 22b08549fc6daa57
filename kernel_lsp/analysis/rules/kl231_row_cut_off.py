"""KL231: a row handled as one tile of fixed length, so that longer rows are cut off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import Launch
from kernel_lsp.analysis.rules.base import Hit, Rule, Site, hit
from kernel_lsp.analysis.source import integer, walk
from kernel_lsp.records import TargetKind


def _check(site: Site) -> Iterator[Hit]:
    if not site.found.launchers:
        return
    kernel = site.kernels[0]
    for length, bound in _whole_rows(kernel):
        for launch in site.launches:
            given = launch.arguments.get(length)
            fixed = integer(launch.resolve(given)) if given is not None else None
            if given is not None and fixed is not None and not _checks(launch, fixed):
                yield hit(
                    given,
                    f"the kernel makes one tile of {fixed} elements for {bound} of them: whatever is beyond "
                    "is "
                    f"left out. Use triton.next_power_of_2, or a loop over the row",
                    parameter=length,
                    length=fixed,
                )


def _whole_rows(kernel: KernelFacts) -> set[tuple[str, str]]:
    """(constexpr, runtime bound) of ``lanes < bound`` where lanes is the range itself, on no loop's way."""
    found: set[tuple[str, str]] = set()
    if kernel.loops:
        return found
    for node in kernel.nodes:
        match node:
            case ast.Compare(left=left, ops=[ast.Lt()], comparators=[ast.Name(id=bound)]) if (
                bound in kernel.parameters and bound not in kernel.constexprs
            ):
                lanes = kernel.resolve(left)
                if isinstance(lanes, ast.Call) and kernel.called(lanes) == "arange" and len(lanes.args) == 2:
                    length = lanes.args[1]
                    if isinstance(length, ast.Name) and length.id in kernel.constexprs:
                        found.add((length.id, bound))
    # Another range of the same length that moves with the program covers the row in pieces.
    moving = {
        n.id
        for node in kernel.nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for n in (node.left, node.right)
        if isinstance(n, ast.Name)
    }
    return {(length, bound) for length, bound in found if length not in moving}


def _checks(launch: Launch, fixed: int) -> bool:
    """The launcher compares or limits something: perhaps the length."""
    return any(
        (
            isinstance(n, ast.Compare)
            and any(isinstance(o, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for o in n.ops)
        )
        or (isinstance(n, ast.Constant) and n.value == fixed and n is not launch.resolve(n))
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
