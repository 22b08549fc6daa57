"""Python's parser, asked again when it stumbles over itself. Standard library only.

CPython 3.11 counts recursion in one place for all threads while it turns a syntax tree into
objects. A collection of garbage in that moment that parses something itself (formatting a
traceback does), or another thread that does, makes it raise SystemError on good code: seen once in
CI."""

from __future__ import annotations

import ast
import warnings

ATTEMPTS = 5
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def parse(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """The syntax tree, like ast.parse's. Raises SyntaxError, ValueError, RecursionError or
    MemoryError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(source, filename=filename)
        except SystemError:  # see above: nothing is wrong with the source
            continue
    return ast.parse(source, filename=filename)


def imports(tree: ast.Module) -> set[str]:
    """The top-level packages that a program imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Names of the module that nothing assigns a second time, with what they are assigned."""
    stores = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    ]
    return {
        statement.targets[0].id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and stores.count(statement.targets[0].id) == 1
    }


def parse_text(text: str) -> ast.Module:
    """What an editor has open: a byte order mark is skipped, and invalid escapes in the user's
    strings are not ours to warn of. Raises what `parse` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse(text.removeprefix("\ufeff"))
