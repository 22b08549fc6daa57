"""KL104: forward waits for the GPU, because Python needs a value that is computed there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import DefinitionNode, blocks, children, walk
from kernel_lsp.records import TargetKind

_SYNCS = frozenset({"item", "cpu", "tolist", "numpy"})
_TESTS = frozenset({"any", "all"})
_TORCH_TESTS = frozenset({"torch.any", "torch.all", "torch.equal", "torch.allclose"})
# Branches that a deployed model never takes.
_RARE = ("debug", "verbose", "is_tracing", "is_scripting", "is_compiling", "is_in_onnx_export")
_HOST_ONLY = frozenset({"shape", "size", "numpy", "np", "config"})


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.called_names & (_SYNCS | _TESTS | {"print", "equal", "allclose"}):
        return
    for function in site.functions:
        names = {a.arg for a in function.args.args[1:]}
        yield from _statements(site, function.body, names, conditional=False)


def _statements(
    site: RuleSite, body: list[ast.stmt], tensors: set[str], *, conditional: bool
) -> Iterator[Hit]:
    for statement in body:
        if isinstance(statement, DefinitionNode | ast.Raise | ast.Assert) or _is_rare(statement):
            continue
        for child in children(statement):
            if isinstance(child, ast.expr | ast.withitem):
                yield from _expressions(site, child, tensors, conditional=conditional)
        if isinstance(statement, ast.If | ast.While):
            yield from _test(site, statement.test)
        inside = conditional or isinstance(statement, ast.If | ast.Try)
        for block in blocks(statement):
            yield from _statements(site, block, tensors, conditional=inside)


def _expressions(
    site: RuleSite, root: ast.AST, tensors: set[str], *, conditional: bool
) -> Iterator[Hit]:
    for node in walk(root):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SYNCS and not node.args:
            if not _is_on_host(site, node.func.value):
                yield _hit(node, f".{node.func.attr}()")
        elif not conditional and _prints(node, tensors):
            yield _hit(node, "print of a tensor")


def _prints(call: ast.Call, tensors: set[str]) -> bool:
    is_print = isinstance(call.func, ast.Name) and call.func.id == "print"
    return is_print and any(isinstance(a, ast.Name) and a.id in tensors for a in call.args)


def _test(site: RuleSite, test: ast.expr) -> Iterator[Hit]:
    """``if mask.any():`` and ``while torch.all(..):`` turn a tensor into a bool."""
    operands = test.values if isinstance(test, ast.BoolOp) else [test]
    for operand in operands:
        inner = operand.operand if isinstance(operand, ast.UnaryOp) else operand
        if not isinstance(inner, ast.Call):
            continue
        is_method = (
            isinstance(inner.func, ast.Attribute) and inner.func.attr in _TESTS and not inner.args
        )
        if site.file.dotted(inner.func) in _TORCH_TESTS or (
            is_method and not _is_on_host(site, inner.func.value)  # type: ignore[attr-defined]
        ):
            yield _hit(inner, "a branch on a tensor's value")


def _is_on_host(site: RuleSite, node: ast.expr) -> bool:
    """Shapes, numpy arrays and things already moved: no second wait."""
    for inner in walk(node):
        if isinstance(inner, ast.Attribute) and inner.attr in (*_HOST_ONLY, *_SYNCS):
            return True
        if isinstance(inner, ast.Name) and (
            inner.id in _HOST_ONLY or (site.file.imports.get(inner.id) or "").startswith("numpy")
        ):
            return True
    return False


def _is_rare(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If):
        return False
    return any(word in ast.unparse(statement.test).lower() for word in _RARE)


def _hit(node: ast.expr, what: str) -> Hit:
    return hit(
        node,
        f"{what} in forward makes the CPU wait for the GPU and stops it from queueing the next "
        f"kernels",
        what=what,
    )


KL104 = Rule(
    id="KL104",
    name="host-sync-in-forward",
    summary="forward waits for a value from the GPU",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE}),
    check=_check,
)
