"""KL217: a size passed as a constexpr compiles the kernel again for every value of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import integer, walk
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    launches = site.launches
    if not launches:
        return
    kernel = site.kernels[0]
    needed = _needed_at_compile_time(kernel)
    for launch in launches:
        for name in sorted((_bounds(kernel) - needed) & launch.arguments.keys()):
            if _is_number_of_elements(launch, launch.arguments[name]):
                yield hit(
                    launch.arguments[name],
                    f"{name} is a constexpr, so each new number of elements compiles the kernel "
                    f"again: "
                    "pass it as an ordinary argument",
                    parameter=name,
                )


def _is_number_of_elements(launch: LaunchExpression, given: ast.expr) -> bool:
    """``x.numel()``, or the rows of ``x.view(-1, width)``: what changes with the batch."""
    match launch.resolve(given):
        case ast.Call(func=ast.Attribute(attr="numel"), args=[]):
            return True
        case ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=index):
            return integer(index) == 0 and _is_flattened(launch.resolve(tensor))
    return False


def _is_flattened(tensor: ast.expr) -> bool:
    match tensor:
        case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[first, _]):
            return integer(first) == -1
    return False


def _bounds(kernel: KernelFacts) -> set[str]:
    """Constexprs that limit what all programs together go through: ``offs < n``, ``range(pid, n,
    step)``."""
    found: set[str] = set()
    for node in kernel.nodes:
        limited = (
            node.left
            if isinstance(node, ast.Compare)
            else node.iter
            if isinstance(node, ast.For)
            else None
        )
        if limited is not None and any(
            a.startswith("pid") or a == "opaque" for a in kernel.atoms(limited)
        ):
            bounds = node.comparators if isinstance(node, ast.Compare) else [limited]
            found |= {n.id for bound in bounds for n in walk(bound) if isinstance(n, ast.Name)}
    return found & kernel.constexprs


def _needed_at_compile_time(kernel: KernelFacts) -> set[str]:
    """Lengths of tiles, bounds of unrolled loops, and what only an ``if`` on constants decides."""
    found: set[str] = set()
    for call, name in kernel.calls:
        if name is None or name in (
            "arange",
            "zeros",
            "full",
            "static_range",
            "reshape",
            "make_block_ptr",
        ):
            found |= {n.id for n in walk(call) if isinstance(n, ast.Name)}
    for node in kernel.nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.Assert):
            found |= {n.id for n in walk(node.test) if isinstance(n, ast.Name)}
    queue = list(found)
    while queue:
        for binding in kernel.bindings.get(queue.pop(), ()):
            new = {n.id for n in walk(binding.value) if isinstance(n, ast.Name)} - found
            found |= new
            queue += new
    return found


KL217 = Rule(
    id="KL217",
    name="constexpr-per-shape",
    summary="a number of elements passed as a constexpr",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
