"""KL205: a block size that is an ordinary argument does not compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import is_constexpr, language_name
from kernel_lsp.analysis.names import bound_names
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit
from kernel_lsp.analysis.targets import parameters
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    # A helper's argument is constexpr when its caller's is; only a launch makes it a runtime value.
    if not site.found.launchers:
        return
    kernel = site.functions[0]
    rebound = {name for statement in kernel.body for name in bound_names(statement)}
    sizes = {name for node, _ in site.calls for name in _shape_names(site, node)} - rebound
    for parameter in parameters(kernel):
        if parameter.arg in sizes and not is_constexpr(site.file, parameter):
            yield hit(
                parameter,
                f"{parameter.arg} is the length of a block, so it must be annotated tl.constexpr "
                f"to compile",
                parameter=parameter.arg,
            )


def _shape_names(site: RuleSite, call: ast.Call) -> Iterator[str]:
    """Names that give the shape of a block."""
    name = language_name(site.file, call.func)
    shape: ast.expr | None = None
    if name == "arange":
        shape = ast.Tuple(elts=list(call.args))
    elif name in ("zeros", "full"):
        shape = argument(call, 0, "shape")
    for element in shape.elts if isinstance(shape, ast.Tuple | ast.List) else ():
        if isinstance(element, ast.Name):
            yield element.id


KL205 = Rule(
    id="KL205",
    name="block-size-not-constexpr",
    summary="a block size that is not annotated tl.constexpr",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
