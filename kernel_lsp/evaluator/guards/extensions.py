"""Static guard: which uses of torch.utils.cpp_extension only ask for the gate's own building.

Covers: importing `load_inline` or its module, and naming it. Does not cover: what is built
(native.py)."""

from __future__ import annotations

import ast

from kernel_lsp.evaluator.guards.names import ModuleNames

PACKAGE, MODULE, FUNCTION = "torch.utils", "cpp_extension", "load_inline"


def plain_uses(tree: ast.Module, names: ModuleNames) -> frozenset[ast.AST]:
    """Nodes that name `load_inline`, or its module in order to name it."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if all(alias.name == f"{PACKAGE}.{MODULE}" for alias in node.names):
                found.add(node)
        elif isinstance(node, ast.ImportFrom):
            wanted = {PACKAGE: MODULE, f"{PACKAGE}.{MODULE}": FUNCTION}.get(node.module or "")
            if wanted and all(alias.name == wanted for alias in node.names):
                found.add(node)
        elif isinstance(node, ast.Attribute) and node.attr == FUNCTION:
            found |= {node.value} if names.dotted(node.value) == f"{PACKAGE}.{MODULE}" else set()
    return frozenset(found)
