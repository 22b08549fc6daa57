"""A file without an accepted rewrite: the original target, and nothing that only the rewrite used.

The original stands in the evidence, in the program that was the reference, and so do other
functions that changed with it (a kernel's launcher) and imports that have gone since. Lines that
the rewrite has not touched keep their bytes (rewrite/edit.py). Comments between statements that
only the slice has lost are not brought back; version control has them."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from itertools import pairwise

from kernel_lsp import analysis, notebooks, parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.patching import making
from kernel_lsp.records import Acceptance, Guarded, Snapshot, SourceEdit, Target
from kernel_lsp.rewrite import edit


def without(text: str, acceptance: Acceptance) -> str | None:
    """The file as it would be; None when the target cannot be put back (of a patch module: when
    nothing would be left of it). ``text``: of the file as it lies there, also of a notebook."""
    if not notebooks.is_notebook(acceptance.path):
        return _without(text, acceptance)
    try:
        before = notebooks.program(notebooks.parse(text).cells).text
        after = _without(before, acceptance)
        return None if after is None else notebooks.edit_program(text, after)
    except ValueError:
        return None


def _without(text: str, acceptance: Acceptance) -> str | None:
    if making.read(text) is not None:
        return making.without(text, [acceptance.qualname.partition(".")[0]])
    target = _find(text, acceptance.qualname)
    original = _original(acceptance)
    if target is None or original is None:
        return None
    others = _others(text, acceptance)
    imports = _imports(text, acceptance, [original, *(source for _, source in others)])
    if imports is None:
        return None
    back = SourceEdit(qualname=acceptance.qualname, target=original, others=others, imports=imports)
    try:
        changed = edit.apply_edit(text, target.span, back)
    except (RewriteError, SyntaxError, ValueError):
        return None
    return _without_unused(changed, _added_names(acceptance))


def patch(path: str, before: str, after: str) -> str:
    """A unified diff that ``git apply`` takes; empty when nothing differs."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))  # git's lines
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _find(text: str, qualname: str) -> Target | None:
    return analysis.named_target(Snapshot(uri="", text=text), qualname)


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


def _others(text: str, acceptance: Acceptance) -> tuple[tuple[str, str], ...]:
    """Name and original source of the other functions that the rewrite changed and that are still
    there."""
    evidence, own = acceptance.evidence, acceptance.qualname.partition(".")[0]
    was, made = _definitions(evidence.reference.source), _definitions(evidence.candidate_source)
    there = _definitions(text)
    changed = [n for n, node in was.items() if n in made and ast.dump(node) != ast.dump(made[n])]
    lines = _lines(evidence.reference.source)
    return tuple(
        (name, edit.LINE_END.sub("\n", "".join(lines[_first(was[name]) : was[name].end_lineno])))
        for name in changed
        if name != own and name in there
    )


def _definitions(text: str) -> dict[str, ast.stmt]:
    return {
        node.name: node
        for node in parsing.parse_text(text).body
        if isinstance(node, edit.DEFINITIONS)
    }


def _imports(text: str, acceptance: Acceptance, restored: list[str]) -> tuple[str, ...] | None:
    """Imports of the original that have gone since; None where it needs something else that has
    gone."""
    reference = parsing.parse_text(acceptance.evidence.reference.source)
    nodes = (node for source in restored for node in ast.walk(parsing.parse_text(source)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    missing = (used & _bound(reference)) - _bound(parsing.parse_text(text))
    imports = [
        s
        for s in reference.body
        if isinstance(s, ast.Import | ast.ImportFrom) and _names(s) & missing
    ]
    if missing - {name for statement in imports for name in _names(statement)}:
        return None
    return tuple(ast.unparse(statement) for statement in imports)


def _added_names(acceptance: Acceptance) -> set[str]:
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
    lines = _lines(text)
    first = _first(statement)
    last = statement.end_lineno or statement.lineno
    while (
        last < len(lines)
        and not lines[last].strip()
        and not isinstance(statement, ast.Import | ast.ImportFrom)
    ):
        last += 1
    return "".join([*lines[:first], *lines[last:]])


def _first(statement: ast.stmt) -> int:
    """Index of its first line, decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(node.lineno for node in decorators)]) - 1


def _lines(text: str) -> list[str]:
    """As Python counts them, with their ends."""
    ends = [0, *(match.end() for match in edit.LINE_END.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends) if start < end]


def combine_patches(guarded: Iterable[Guarded], texts: dict[str, str]) -> str:
    """One patch that takes back every rewrite that failed. ``texts``: path -> the file as it is."""
    after = dict(texts)
    for one in guarded:
        path = one.acceptance.path
        if one.failed and path in after:
            after[path] = without(after[path], one.acceptance) or after[path]
    return "".join(patch(path, texts[path], after[path]) for path in sorted(texts))
