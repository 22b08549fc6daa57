"""KL218: several programs store different values at one address."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, PointerAccess, names_in
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import integer, walk
from kernel_lsp.records import TargetKind

_LOCKS = frozenset({"atomic_cas", "atomic_xchg"})


def _check(site: RuleSite) -> Iterator[Hit]:
    kernel = site.kernels[0]
    if "program_id" not in site.called_names or not site.found.launchers:
        return
    if any(name in _LOCKS for facts in site.kernels for _, name in facts.calls):
        return
    launches = site.launches
    for access in kernel.accesses:
        # A branch on a constexpr is often what the launcher chose the grid for: if SPLIT_K == 1.
        chosen = any(names_in(test) & kernel.constexprs for test in access.tests)
        if access.name == "store" and access.value is not None and not chosen:
            axis = _racing_axis(kernel, access, launches)
            if axis is not None:
                yield hit(
                    access.call,
                    f"every program along axis {axis} of the grid stores here, each its own "
                    f"value, and the "
                    "last "
                    f"one wins: make the address depend on tl.program_id({axis}), or use "
                    f"tl.atomic_add",
                    axis=axis,
                )


def _racing_axis(
    kernel: KernelFacts, access: PointerAccess, launches: list[LaunchExpression]
) -> int | None:
    """An axis with several programs that the value depends on and nothing of the address does."""
    assert access.value is not None
    where = kernel.atoms(access.pointer)
    for condition in (access.mask, *access.tests, *(_header(loop) for loop in access.loops)):
        where |= kernel.atoms(condition) if condition is not None else frozenset()
    if where & {"opaque", "memory", "pid:?"}:
        return None
    for atom in sorted(kernel.atoms(access.value) - where):
        axis = int(atom[4:]) if atom.startswith("pid:") and atom[4:].isdigit() else None
        if axis is not None and launches and all(_has_many(launch, axis) for launch in launches):
            return axis
    return None


def _header(loop: ast.For | ast.While) -> ast.expr:
    return loop.iter if isinstance(loop, ast.For) else loop.test


def _has_many(launch: LaunchExpression, axis: int) -> bool:
    """The launch's grid is written out and has more than one program along the axis."""
    axes = launch.grid_axes()
    if axes is None or axis >= len(axes):
        return False
    number = launch.resolve(axes[axis])
    parts = [launch.resolve(n) for n in walk(number) if isinstance(n, ast.expr)]
    covers_all = any(
        isinstance(n, ast.Attribute) and n.attr == "next_power_of_2" for p in parts for n in walk(p)
    )
    return integer(number) != 1 and not covers_all


KL218 = Rule(
    id="KL218",
    name="program-race",
    summary="programs that store different values at one address",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
