"""The smallest self-contained program for one target, so that the user's file itself is never run.

Kept: the target, its launchers, the input makers, and every import, constant, helper, class and
decorator that these use, in the original order. Left out: everything else, above all calls at the
top level. An assignment is kept only when its name is used, even where that runs code: the target
needs it."""

from __future__ import annotations

import ast

from kernel_lsp.analysis.names import FileNames
from kernel_lsp.analysis.source import ParsedSource, definitions
from kernel_lsp.analysis.targets import INPUT_MAKERS
from kernel_lsp.records import Program, Target


def slice_target(names: FileNames, target: Target) -> Program | None:
    """The target's definition with all of the file that it needs, as a program; None when the
    target's name is gone from the file."""
    body = names.file.tree.body
    owners = _owners(body, (target.qualname, *target.launchers))
    if target.qualname not in owners:
        return None
    kept = set(owners.values()).union(*(names.statements_binding(maker) for maker in INPUT_MAKERS))
    own = {} if "." in target.qualname else {target.qualname: owners[target.qualname]}
    closure = names.closure([body[i] for i in sorted(kept)], own)
    kept |= set(closure.statements) | {i for i, s in enumerate(body) if _always_kept(s)}
    parts = [_source(names.file, body[i], closure.names) for i in sorted(kept)]
    return Program(
        source="".join(_join_parts([part for part in parts if part])),
        entry=target.qualname,
        kind=target.kind,
        missing=closure.missing,
    )


def _owners(body: list[ast.stmt], qualnames: tuple[str, ...]) -> dict[str, int]:
    """Qualified name -> index of the last top-level statement that defines it."""
    return {
        qualname: index
        for index, statement in enumerate(body)
        for qualname, _ in definitions([statement])
        if qualname in qualnames
    }


def _always_kept(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and (
        statement.module == "__future__" or statement.names[0].name == "*"
    )


def _source(file: ParsedSource, statement: ast.stmt, used: frozenset[str]) -> str:
    if isinstance(statement, ast.Import | ast.ImportFrom) and not _always_kept(statement):
        return _import(statement, used)
    span = file.full_span(statement)
    return file.text[span.start : span.end].replace("\r\n", "\n").replace("\r", "\n")


def _import(statement: ast.Import | ast.ImportFrom, used: frozenset[str]) -> str:
    """The import with only the names that are used: the others may not even be installed."""
    needed = [a for a in statement.names if (a.asname or a.name.split(".")[0]) in used]
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import(names=needed)) if needed else ""
    reduced = ast.ImportFrom(module=statement.module, names=needed, level=statement.level)
    return ast.unparse(reduced) if needed else ""


def _join_parts(parts: list[str]) -> list[str]:
    """Two empty lines around definitions, none between simple statements."""
    out: list[str] = []
    for before, part in zip(["", *parts], parts, strict=False):
        if before and (_is_block(before) or _is_block(part)):
            out.append("\n\n")
        out += [part, "\n"]
    return out


def _is_block(part: str) -> bool:
    return part.startswith(("def ", "class ", "async ", "@"))
