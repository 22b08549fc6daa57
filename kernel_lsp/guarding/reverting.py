"""A file without an accepted rewrite: the original target, and nothing that only the rewrite used.

The original stands in the evidence, in the program that was the reference. Lines that the rewrite has not
touched keep their bytes (rewrite/edit.py). Comments between statements that only the slice has lost are not
brought back; version control has them.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable

from kernel_lsp import analysis, parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Acceptance, Guarded, Snapshot, SourceEdit, Target
from kernel_lsp.rewrite import edit


def without(text: str, acceptance: Acceptance) -> str | None:
    """The file as it would be; None when the target cannot be put back."""
    target = _find(text, acceptance.qualname)
    original = _original(acceptance)
    if target is None or original is None:
        return None
    back = SourceEdit(qualname=acceptance.qualname, target=original)
    try:
        changed = edit.apply_edit(text, target.span, back)
    except (RewriteError, SyntaxError, ValueError):
        return None
    return _without_unused(changed, _added(acceptance))


def patch(path: str, before: str, after: str) -> str:
    """A unified diff that ``git apply`` takes; empty when nothing differs."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _find(text: str, qualname: str) -> Target | None:
    return analysis.find_target(analysis.analyze(Snapshot(uri="", text=text)), qualname)


def _original(acceptance: Acceptance) -> str | None:
    """The target's source as it was, dedented."""
    program = acceptance.evidence.reference
    target = _find(program.source, acceptance.qualname)
    if target is None:
        return None
    start = program.source.rfind("\n", 0, target.span.start) + 1
    indent = program.source[start : target.span.start]
    lines = program.source[start : target.span.end].split("\n")
    return "\n".join(line.removeprefix(indent) for line in lines)


def _added(acceptance: Acceptance) -> set[str]:
    """Names that the rewrite brought into the file."""
    evidence = acceptance.evidence
    return _bound(parsing.parse_text(evidence.candidate_source)) - _bound(
        parsing.parse_text(evidence.reference.source)
    )


def _bound(tree: ast.Module) -> set[str]:
    return {name for statement in tree.body for name in _names(statement)}


def _names(statement: ast.stmt) -> set[str]:
    """What a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _without_unused(text: str, added: set[str]) -> str:
    """Remove statements that bind nothing but such names, as long as nothing else uses them."""
    while True:
        tree = parsing.parse_text(text)
        spare = next((s for s in tree.body if _is_spare(s, tree, added)), None)
        if spare is None:
            return text
        text = _cut(text, spare)


def _is_spare(statement: ast.stmt, tree: ast.Module, added: set[str]) -> bool:
    names = _names(statement)
    if not names or not names <= added:
        return False
    others = (node for other in tree.body if other is not statement for node in ast.walk(other))
    return not any(isinstance(node, ast.Name) and node.id in names for node in others)


def _cut(text: str, statement: ast.stmt) -> str:
    """Without the statement's lines and the empty ones behind it."""
    lines = text.splitlines(keepends=True)
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)]) - 1
    last = statement.end_lineno or statement.lineno
    while (
        last < len(lines)
        and not lines[last].strip()
        and not isinstance(statement, ast.Import | ast.ImportFrom)
    ):
        last += 1
    return "".join([*lines[:first], *lines[last:]])


def combined(guarded: Iterable[Guarded], texts: dict[str, str]) -> str:
    """One patch that takes back every rewrite that failed. ``texts``: path -> the file as it is."""
    after = dict(texts)
    for one in guarded:
        path = one.acceptance.path
        if one.failed and path in after:
            after[path] = without(after[path], one.acceptance) or after[path]
    return "".join(patch(path, texts[path], after[path]) for path in sorted(texts))
