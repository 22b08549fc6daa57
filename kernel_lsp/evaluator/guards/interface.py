"""Static guard: a rewrite must take every argument that its original takes.

Covers: fewer positional arguments, optional arguments that are gone, have another default, or are
never read; for `forward`, `__init__`, or the function itself. Required arguments may be renamed,
because the workload passes them by position. Does not cover: what an argument does with values
that the workload does not use; classes that inherit these methods."""

from __future__ import annotations

import ast

from kernel_lsp.parsing import FunctionNode

METHODS = ("__init__", "forward", "__call__")


def differences(
    reference: ast.Module, entry: str, candidate: ast.Module, other: str
) -> list[tuple[int, str]]:
    """(line, what) of the candidate ``other`` against the reference ``entry``."""
    mine, theirs = _find(reference, entry), _find(candidate, other)
    if isinstance(mine, FunctionNode) and isinstance(theirs, FunctionNode):
        return _compare(mine, theirs)
    if not (isinstance(mine, ast.ClassDef) and isinstance(theirs, ast.ClassDef)):
        return []
    before, after = _methods(mine), _methods(theirs)
    return [found for name in METHODS if name in before and name in after
            for found in _compare(before[name], after[name])]  # fmt: skip


def _find(tree: ast.Module, entry: str) -> ast.AST | None:
    found: ast.AST | None = tree
    for part in entry.split("."):
        named = (n for n in getattr(found, "body", []) if getattr(n, "name", None) == part)
        found = next(named, None)
    return found


def _methods(node: ast.ClassDef) -> dict[str, FunctionNode]:
    return {item.name: item for item in node.body if isinstance(item, FunctionNode)}


def _compare(reference: FunctionNode, candidate: FunctionNode) -> list[tuple[int, str]]:
    mine, theirs = reference.args, candidate.args
    found = []
    if theirs.vararg is None and len(_positional(theirs)) < len(_positional(mine)):
        found.append(f"{candidate.name}() takes fewer arguments than the original")
    if theirs.kwarg is None:
        read = _names_read(candidate)
        for name, default in _optional(mine).items():
            found += _option(
                candidate.name, name, default, theirs, read, name in _names_read(reference)
            )
    return [(candidate.lineno, what) for what in found]


def _option(
    function: str, name: str, default: str, arguments: ast.arguments, read: set[str], matters: bool
) -> list[str]:
    """What happened to one optional argument of the original; ``default`` empty: it has none."""
    names = {arg.arg for arg in (*_positional(arguments), *arguments.kwonlyargs)}
    if name not in names:
        return [f"{function}() does not take {name}, which the original does"]
    now = _optional(arguments).get(name, "")
    if default and now != default:
        return [
            f"{function}() has another default for {name}: {now or 'none'} instead of {default}"
        ]
    return (
        [f"{function}() never reads {name}, which the original does"]
        if matters and name not in read
        else []
    )


def _positional(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args]


def _optional(arguments: ast.arguments) -> dict[str, str]:
    """Arguments that are passed by name or not at all, with their defaults as text."""
    positional = _positional(arguments)
    with_default = positional[len(positional) - len(arguments.defaults) :]
    found = {a.arg: ast.unparse(d) for a, d in zip(with_default, arguments.defaults, strict=True)}
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[arg.arg] = ast.unparse(default) if default is not None else ""
    return found


def _names_read(function: FunctionNode) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
