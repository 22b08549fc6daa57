"""KL227: a kernel that reads a module-level number which is no tl.constexpr."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import language_name
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import ParsedSource, module_level
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    plain = _plain_numbers(site.file)
    if not plain:
        return
    for kernel in site.kernels:
        own = kernel.bindings.keys() | set(kernel.parameters)
        reported: set[str] = set()
        for node in kernel.nodes:
            if isinstance(node, ast.Name) and node.id in plain and node.id not in own | reported:
                reported.add(node.id)
                yield hit(
                    node,
                    f"a kernel cannot read the global {node.id}: write {node.id} = "
                    f"tl.constexpr(...) or "
                    "annotate it "
                    "with tl.constexpr",
                    variable=node.id,
                )


def _plain_numbers(file: ParsedSource) -> set[str]:
    """Names that are bound at the top level, each time to a number."""
    found: set[str] = set()
    other: set[str] = set()
    for statement in module_level(file.tree.body):
        match statement:
            case ast.Assign(targets=targets, value=value):
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                (found if _is_number(value) else other).update(names)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                is_constexpr = language_name(file, annotation) == "constexpr" or isinstance(
                    annotation, ast.Constant
                )
                (found if value and _is_number(value) and not is_constexpr else other).add(name)
    return found - other - file.imports.keys()


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Constant()]):
            return True
    return False


KL227 = Rule(
    id="KL227",
    name="global-not-constexpr",
    summary="a global number that the kernel reads and that is no tl.constexpr",
    severity="error",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
