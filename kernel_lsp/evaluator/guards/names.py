"""What a dotted name in a candidate's source stands for, after its imports and plain assignments.

Covers: `import a.b as c`, `from a import b as c`, `c = a.b` at any level, and the usual short
names of torch and Triton. Does not cover: names that are computed, containers, arguments, and the
order of assignments (a name that ever stands for a module is taken for it everywhere)."""

from __future__ import annotations

import ast

USUAL = {"nn": "torch.nn", "F": "torch.nn.functional", "tl": "triton.language", "np": "numpy"}
FOREIGN = {"torch", "triton", "numpy", "time", "sys", "os", "builtins", "random", "math", "gc"}
"""Roots of what belongs to the whole process."""


class ModuleNames:
    """The names of one module."""

    def __init__(self, tree: ast.AST) -> None:
        self._known = dict(USUAL)
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._learn_import(node)
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._learn_assignment(node.targets[0], node.value)

    def dotted(self, node: ast.AST) -> str:
        """`torch.nn.functional.linear` for any spelling of it; empty for what is no chain of
        names."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self._known.get(node.id, node.id), *reversed(parts)])

    def foreign(self, node: ast.AST) -> str:
        """The dotted name when it belongs to the whole process, else empty."""
        name = self.dotted(node)
        return name if name.split(".")[0] in FOREIGN else ""

    def _learn_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                self._known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                self._known[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _learn_assignment(self, target: ast.expr, value: ast.expr) -> None:
        name = self.foreign(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""
        if isinstance(target, ast.Name) and name:
            self._known[target.id] = name
