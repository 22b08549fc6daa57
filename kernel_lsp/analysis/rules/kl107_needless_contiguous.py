"""KL107: .contiguous() that copies for an operation which reads any strides, or that never does
anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.torchops import is_matmul, operation
from kernel_lsp.analysis.source import words
from kernel_lsp.records import TargetKind

# Their results are laid out row by row, whatever the inputs' strides are.
_ALWAYS_CONTIGUOUS = frozenset({"linear", "contiguous"})
_MAKERS = frozenset(f"torch.{name}" for name in words("zeros ones empty full arange rand randn"))


def _check(site: RuleSite) -> Iterator[Hit]:
    if "contiguous" not in site.called_names:
        return
    for node in site.nodes:
        operands = is_matmul(site, node) if isinstance(node, ast.expr) else None
        for operand in operands or ():
            inner = _contiguous(operand)
            if inner is not None and _swaps_last_two(inner):
                yield hit(
                    operand,
                    ".contiguous() copies the matrix; matrix products read transposed operands as "
                    "they are",
                    reason="transposed operand",
                )
        inner = _contiguous(node)
        if inner is not None and _is_contiguous(site, inner):
            yield hit(
                node,  # type: ignore[arg-type]
                ".contiguous() does nothing here: this result is always contiguous",
                reason="already contiguous",
            )


def _contiguous(node: ast.AST) -> ast.expr | None:
    """``x`` of ``x.contiguous()``."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "contiguous"
        and not node.args
        and not node.keywords
    ):
        return node.func.value
    return None


def _swaps_last_two(node: ast.expr) -> bool:
    """``x.t()``, ``x.T``, ``x.mT``, ``x.transpose(-1, -2)``: the two layouts that BLAS takes."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("T", "mT")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "t":
        return not node.args
    return node.func.attr == "transpose" and {ast.unparse(a) for a in node.args} == {"-1", "-2"}


def _is_contiguous(site: RuleSite, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if site.submodule_class(node) == "torch.nn.Linear" or site.file.dotted(node.func) in _MAKERS:
        return True
    called = operation(site, node)
    return called is not None and called[0] in _ALWAYS_CONTIGUOUS


KL107 = Rule(
    id="KL107",
    name="needless-contiguous",
    summary=".contiguous() that copies for nothing or does nothing",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
