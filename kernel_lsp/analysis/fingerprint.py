"""The identity of a target's code: what comments, formatting and edits elsewhere do not change.

Two texts have one fingerprint exactly when the syntax trees of the target and of every
module-level definition it uses are equal, docstrings and positions left out.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from typing import Any

from kernel_lsp.analysis.names import FileNames
from kernel_lsp.analysis.source import DefinitionNode

# `kind` is the u of u"text"; a type comment is a comment.
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
_fields: dict[type, tuple[str, ...]] = {}


def fingerprint(
    names: FileNames, node: DefinitionNode, launchers: Sequence[DefinitionNode] = ()
) -> str:
    """32 hex digits for the definition and all that it uses; for a kernel also for what launches
    it, because a rewrite may change both."""
    closure = names.closure([node, *launchers], own={})
    body = names.file.tree.body
    parts = [_serialize(names, node), *(_serialize(names, launcher) for launcher in launchers)]
    for index in closure.statements:
        statement = body[index]
        if statement is node or statement in launchers:
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            parts += _imports_used(statement, closure.names)
        else:
            parts.append(_serialize(names, statement))
    # Sorted, because the order of definitions is formatting; where one name is bound twice
    # an exchange goes unnoticed, which no real edit does.
    parts[1:] = sorted(parts[1:])
    return hashlib.blake2b(
        "\x1e".join(parts).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def _serialize(names: FileNames, node: ast.stmt) -> str:
    """Cached per file: a base class is part of every subclass's fingerprint."""
    known = names.serialized.get(id(node))
    if known is None:
        known = names.serialized[id(node)] = serialize(node)
    return known


def serialize(node: ast.AST) -> str:
    """The tree as text. Iterative: an expression of thousands of terms overflows ast.dump."""
    out: list[str] = []
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        kind = item.__class__
        # The first three are four fifths of a tree.
        if kind is ast.Name:
            out.append("$" + item.id)  # no node class begins with a dollar
        elif kind is str:
            out.append(item)
        elif kind is ast.Constant:
            out.append(f"{item.value.__class__.__name__} {item.value!r}")
        elif kind is list:
            items = [
                child
                for child in item
                if child.__class__ is not ast.Expr or not _is_docstring(child)
            ]
            out.append(f"[{len(items)}")
            stack += items
        elif isinstance(item, ast.AST):
            fields = _fields.get(kind)
            if fields is None:
                fields = _fields[kind] = tuple(
                    name for name in kind._fields if name not in _IGNORED
                )
            out.append(kind.__name__)
            stack += [getattr(item, name, None) for name in fields]
        else:
            out.append(repr(item))
    return "\x1f".join(out)


def _is_docstring(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _imports_used(statement: ast.Import | ast.ImportFrom, used: frozenset[str]) -> list[str]:
    """One part per imported name that is used, so that a longer import list changes nothing."""
    origin = ""
    if isinstance(statement, ast.ImportFrom):
        origin = "." * statement.level + (statement.module or "") + ":"
    return [
        f"import {origin}{alias.name} as {bound}"
        for alias in statement.names
        if (bound := alias.asname or alias.name.split(".")[0]) in used
    ]
