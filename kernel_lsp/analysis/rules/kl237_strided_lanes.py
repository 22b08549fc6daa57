"""KL237: neighboring lanes that read elements far apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from kernel_lsp.analysis.kernels import KernelFacts, PointerAccess
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.masked_lanes import parts
from kernel_lsp.analysis.source import integer
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    launches = site.launches
    if not launches:
        return
    kernel = site.kernels[0]
    if any(isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Tuple) for n in kernel.nodes):
        return  # beside tiles of two dimensions a vector is little traffic
    for access in kernel.accesses:
        factor = _lane_factor(kernel, access)
        if factor is not None and all(_is_a_width(launch, factor) for launch in launches):
            yield hit(
                access.call,
                f"neighboring lanes are {factor} elements apart, so one warp touches {factor} "
                f"times as much "
                "memory: "
                "let lanes run along the contiguous axis",
                factor=factor,
            )


def _lane_factor(kernel: KernelFacts, access: PointerAccess) -> str | None:
    """The runtime size that the lanes of a one-dimensional tile are multiplied by."""
    factors: set[str] = set()
    is_column = False
    for node in parts(kernel, access.pointer, partial(_summands, kernel)):
        if "lanes" not in kernel.atoms(node):
            if _counts_rounds(kernel, node):
                return None  # the loop goes along the row, and finds it in the cache
            # Without it the kernel wants one element of each row, and has no other way to it.
            is_column |= any(atom.startswith("pid:") for atom in kernel.atoms(node))
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mult)
            and _is_lanes(kernel, node.left)
        ):
            if not isinstance(node.right, ast.Name) or node.right.id not in kernel.parameters:
                return None
            factors.add(node.right.id)
        elif not _summands(kernel, node):
            return None
    return factors.pop() if is_column and len(factors) == 1 else None


def _summands(kernel: KernelFacts, node: ast.expr) -> list[ast.expr]:
    """Of a sum that holds lanes."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return [node.left, node.right] if is_sum and "lanes" in kernel.atoms(node) else []  # type: ignore[attr-defined]


def _counts_rounds(kernel: KernelFacts, node: ast.expr) -> bool:
    """A variable of a loop, by itself."""
    return isinstance(node, ast.Name) and any(
        b.loops and not b.is_exact for b in kernel.bindings.get(node.id, ())
    )


def _is_lanes(kernel: KernelFacts, node: ast.expr) -> bool:
    """A range, perhaps moved by a program's offset: neighbors differ by one."""
    node = kernel.resolve(node)
    if kernel.called(node) == "arange":
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = ["lanes" in kernel.atoms(s) for s in (node.left, node.right)]
        if sides.count(True) == 1:
            return _is_lanes(kernel, node.left if sides[0] else node.right)
    return False


def _is_a_width(launch: LaunchExpression, parameter: str) -> bool:
    """The last or a middle dimension's length: more than one element in any tensor worth a
    kernel."""
    given = launch.arguments.get(parameter)
    if given is None:
        return False
    match launch.resolve(given):
        case (
            ast.Subscript(value=ast.Attribute(attr="shape"))
            | ast.Call(func=ast.Attribute(attr="size"))
        ):
            return True
        case ast.Constant() as number:
            return (integer(number) or 0) >= 8
    return False


KL237 = Rule(
    id="KL237",
    name="strided-lanes",
    summary="neighboring lanes that read elements a row apart",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
