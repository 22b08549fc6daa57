"""Static guard: assignments to what belongs to the whole process, and switches of speed and
precision.

Covers: `torch.x = …`, `del`, `setattr` and `delattr` on torch, Triton, numpy, clocks and the
system, under any name that names.py knows. Does not cover: changes through `vars()`, `__dict__` or
`type.__setattr__` (watch/functions.py sees what they changed)."""

from __future__ import annotations

import ast

from kernel_lsp.evaluator.guards.names import ModuleNames

SWITCHES = {
    "allow_tf32", "fp32_precision", "benchmark", "deterministic", "enabled",
    "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
}  # fmt: skip


def suspect(node: ast.AST, names: ModuleNames) -> list[str]:
    """Names that belong to the whole process and that this statement or call sets; [] mostly."""
    if isinstance(node, ast.Call):
        return _set_by_call(node, names)
    if isinstance(node, (ast.Assign, ast.Delete)):
        return [word for target in node.targets for word in _check_assignment(target, names)]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return _check_assignment(node.target, names)
    return []


def _check_assignment(target: ast.expr, names: ModuleNames) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [word for item in target.elts for word in _check_assignment(item, names)]
    if not isinstance(target, ast.Attribute) or not names.foreign(target):
        return []
    kind = "switches" if target.attr in SWITCHES else "replaces"
    return [f"{kind} {ast.unparse(target)}"]


def _set_by_call(node: ast.Call, names: ModuleNames) -> list[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("setattr", "delattr") and node.args and names.foreign(node.args[0]):
        return [f"replaces attributes of {ast.unparse(node.args[0])}"]
    return []
