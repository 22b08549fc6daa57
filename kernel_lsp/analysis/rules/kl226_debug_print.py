"""KL226: a print that was left in a kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import KernelFacts, names_in
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.records import TargetKind

_PRINTS = ("device_print", "static_print")


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.called_names & {"print", *_PRINTS}:
        return
    for kernel in site.kernels:
        chosen = {
            id(inner)
            for node in kernel.nodes
            if isinstance(node, ast.If) and _is_switch(kernel, node.test)
            for inner in walk(node)
        }
        for call, name in kernel.calls:
            is_builtin = isinstance(call.func, ast.Name) and call.func.id == "print"
            if id(call) not in chosen and (is_builtin or name in _PRINTS):
                when = (
                    "is compiled"
                    if name == "static_print"
                    else "runs, by every program, and slows all of them"
                )
                yield hit(
                    call,
                    f"this prints whenever the kernel {when}: remove it, or choose it with a "
                    f"constexpr",
                )


def _is_switch(kernel: KernelFacts, test: ast.expr) -> bool:
    """It reads a constexpr: an argument, or a global, since a kernel can read no other."""
    names = names_in(test)
    own = kernel.bindings.keys() | set(kernel.parameters)
    return bool(names & kernel.constexprs) or bool(names - own - kernel.file.imports.keys())


KL226 = Rule(
    id="KL226",
    name="debug-print",
    summary="a print left in a kernel",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
