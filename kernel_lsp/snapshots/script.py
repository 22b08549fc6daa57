"""The definitions of a script, to be run without what the script does.

A script that trains at import cannot be imported to get at its classes. `definitions` keeps
imports, functions and classes, also in ``try`` and ``if`` statements that hold nothing else, at
their lines, and leaves every other statement out. What those had assigned comes from the snapshot.
Standard library only."""

from __future__ import annotations

import ast

from kernel_lsp import parsing

KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
HARMLESS = (*KEPT, ast.Pass, ast.Assign, ast.AnnAssign)
"""What may stand in a kept ``try`` or ``if``: ``except ImportError: flash = None``."""


def definitions(text: str) -> ast.Module:
    """The script's definitions as a module of their own. Raises SyntaxError."""
    tree = parsing.parse(text)
    return ast.Module(body=[node for node in tree.body if _is_definition(node)], type_ignores=[])


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, KEPT) or _is_type_alias(node):
        return True
    if isinstance(node, ast.Try):
        parts = [
            *node.body,
            *node.orelse,
            *node.finalbody,
            *(s for h in node.handlers for s in h.body),
        ]
        return all(isinstance(part, HARMLESS) for part in parts) and any(map(_binds, parts))
    if isinstance(node, ast.If) and not _asks_for_main(node.test):
        parts = [*node.body, *node.orelse]
        return all(_is_definition(part) or isinstance(part, ast.Pass) for part in parts)
    return False


def _binds(node: ast.stmt) -> bool:
    return isinstance(node, KEPT)


def _is_type_alias(node: ast.stmt) -> bool:
    """``type X = …`` of Python 3.12."""
    return type(node).__name__ == "TypeAlias"


def _asks_for_main(test: ast.expr) -> bool:
    """``if __name__ == "__main__":``, whose body is what the script does."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
