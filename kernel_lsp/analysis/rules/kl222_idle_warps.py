"""KL222: more threads than the kernel's largest tile has elements."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from functools import partial

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import LaunchExpression
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit
from kernel_lsp.analysis.rules.tritonops import may_run_on_gpu
from kernel_lsp.analysis.source import integer
from kernel_lsp.records import TargetKind

_THREADS = 32


def _check(site: RuleSite) -> Iterator[Hit]:
    lengths = _lengths(site)
    num_axes = _num_axes(site.kernels[0])
    if lengths is None or not may_run_on_gpu(site):
        return
    tuning = site.tuning
    for config in (tuning.configs or ()) if tuning else ():
        yield from _compare(
            config.node, config.number("num_warps"), lengths, num_axes, config.number
        )
    for launch in site.launches:
        yield from _compare(
            launch.call, _number(launch, "num_warps"), lengths, num_axes, partial(_number, launch)
        )


def _compare(
    call: ast.Call,
    num_warps: int | None,
    lengths: list[ast.expr],
    num_axes: int,
    value: Callable[[str], int | None],
) -> Iterator[Hit]:
    known = [value(n.id) if isinstance(n, ast.Name) else integer(n) for n in lengths]
    if num_warps is None or num_warps == 1 or None in known:  # there is nothing less than one
        return
    sizes = [k for k in known if k]
    # One range may serve every axis.
    largest = max(math.prod(sizes), max(sizes, default=1) ** num_axes)
    if largest < num_warps * _THREADS:
        keyword = next((k for k in call.keywords if k.arg == "num_warps"), None)
        yield hit(
            keyword or call,
            f"{num_warps} warps are {num_warps * _THREADS} threads, and no tile has more than "
            f"{largest} "
            "elements: "
            "the others repeat the same work",
            num_warps=num_warps,
            elements=largest,
        )


def _num_axes(kernel: KernelFacts) -> int:
    """The most axes that a range is broadcast to: two in ``lanes[:, None]``."""
    indices = (n.slice for n in kernel.nodes if isinstance(n, ast.Subscript))
    return max((len(i.elts) for i in indices if isinstance(i, ast.Tuple)), default=1)


def _number(launch: LaunchExpression, name: str) -> int | None:
    given = launch.arguments.get(name)
    return None if given is None else integer(launch.resolve(given))


def _lengths(site: RuleSite) -> list[ast.expr] | None:
    """Lengths of all ranges, whose product no tile exceeds; None when a tile is made in another
    way."""
    found: dict[str, ast.expr] = {}
    for kernel in site.kernels[1:]:
        if any(name in ("arange", "zeros", "full") for _, name in kernel.calls):
            return None
    kernel = site.kernels[0]
    for call, name in kernel.calls:
        if name in (
            "make_block_ptr",
            "make_tensor_descriptor",
            "dot",
            "join",
            "interleave",
            "broadcast_to",
            "expand_dims",
        ):
            return None
        if name is None and isinstance(call.func, ast.Name) and "opaque" in kernel.atoms(call):
            return None
        for length in _shape(kernel, call, name):
            found.setdefault(ast.dump(length), length)
    names_known = all(
        integer(n) is not None or (isinstance(n, ast.Name) and n.id in kernel.constexprs)
        for n in found.values()
    )
    return list(found.values()) if found and names_known else None


def _shape(kernel: KernelFacts, call: ast.Call, name: str | None) -> Iterator[ast.expr]:
    if name == "arange" and len(call.args) == 2:
        yield kernel.resolve(call.args[1])
    elif name in ("zeros", "full") and (shape := argument(call, 0, "shape")) is not None:
        shape = kernel.resolve(shape)
        yield from shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]


KL222 = Rule(
    id="KL222",
    name="idle-warps",
    summary="more threads than the largest tile has elements",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
