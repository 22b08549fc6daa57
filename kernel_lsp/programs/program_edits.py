"""Edits of a program that belong to no single target: fused optimizers, a compiled outermost
module.

Both are the smallest text edits of the file that constructs the thing, found by syntax. They are
offered when the program's own step was measured with them, so that nothing here claims that they
pay. Standard library only."""

from __future__ import annotations

import ast

from kernel_lsp.analysis.scripts import (
    FUSED_OPTIMIZERS,
    IMPLEMENTATION_ARGUMENTS,
    Script,
    has_star,
)
from kernel_lsp.analysis.source import ParsedSource
from kernel_lsp.parsing import parse_text

SAME = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "half",
        "bfloat16",
        "float",
        "double",
        "requires_grad_",
        "apply",
    }
)
"""Methods of a module that return the module."""


def with_fused_optimizers(text: str, running: frozenset[str]) -> str:
    """The text with ``fused=True`` in the calls that construct those optimizers; the text itself
    where nothing is to be changed.

    ``running``: names of the optimizer classes that the program ran without a chosen
    implementation."""
    script = _script(text)
    if script is None:
        return text
    made = []
    for call, dotted in script.calls:
        module, _, name = (dotted or "").rpartition(".")
        if (
            not module.startswith("torch.optim")
            or name not in FUSED_OPTIMIZERS
            or name not in running
        ):
            continue
        is_open = not has_star(call) and not any(
            k.arg in IMPLEMENTATION_ARGUMENTS for k in call.keywords
        )
        if is_open and call.args and not isinstance(call.args[-1], ast.GeneratorExp):
            last = max((*call.args, *(k.value for k in call.keywords)), key=_end)
            end = script.file.offset(*_end(last))
            made.append((end, ", fused=True"))
    changed = _insert(text, made)
    # An argument in parentheses of its own ends earlier.
    return changed if _script(changed) else text


def with_compiled(text: str, class_name: str, mode: str | None) -> str | None:
    """The text with a line more, ``model.compile()``, behind the statement that constructs the
    class. None: it is not found, or stands there more than once. ``mode``: None is torch.compile's
    default."""
    script = _script(text)
    if script is None:
        return None
    found = [one for node in script.nodes if (one := _constructs(node, class_name)) is not None]
    if len(found) != 1:
        return None
    statement, name = found[0]
    start = script.file.offset(statement.lineno, 0)
    indent = text[start : script.file.offset(statement.lineno, statement.col_offset)]
    if indent.strip():  # it shares its line with another statement
        return None
    begun = script.file.offset(*_end(statement))
    if not _ends_line(text, begun):
        return None
    argument = "" if mode in (None, "default") else f'mode="{mode}"'
    return _insert(text, [(begun, f"\n{indent}{name}.compile({argument})")])


def _script(text: str) -> Script | None:
    try:
        return Script(ParsedSource(text, parse_text(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _constructs(node: ast.AST, class_name: str) -> tuple[ast.stmt, str] | None:
    """``model = Model(config).to(device)``: the statement, and the name of the module."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Name | ast.Attribute):
        return None
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in SAME
    ):
        value = value.func.value
    if not isinstance(value, ast.Call):
        return None
    made = value.func.id if isinstance(value.func, ast.Name) else getattr(value.func, "attr", None)
    return (node, ast.unparse(target)) if made == class_name else None


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Line and column, as ast counts."""
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _ends_line(text: str, at: int) -> bool:
    rest = text[at:].split("\n", 1)[0].strip()
    return not rest or rest.startswith("#")


def _insert(text: str, made: list[tuple[int, str]]) -> str:
    for at, new in sorted(made, reverse=True):
        text = text[:at] + new + text[at:]
    return text
