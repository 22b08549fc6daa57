"""Renamed files and folders: the workloads that name their targets are to name the new place.

Only lines ``target = "path.py::name"`` of the workspace's ``.kernel-lsp/*.toml`` are edited, each
in place, so that what people wrote around them stays. A file that leaves its workspace keeps its
lines: nothing there can be named from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from lsprotocol import types

from kernel_lsp import documents, foreign
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.records import Span
from kernel_lsp.workloads import tables

_TARGET = re.compile(r"""(?m)^[ \t]*target[ \t]*=[ \t]*["']([^"'\n]+)::""")


def edits(
    renamed: Sequence[tuple[str, str]], roots: Sequence[str], encoding: str
) -> types.WorkspaceEdit | None:
    """The edit that lets workloads name the renamed files. ``renamed``: (old URI, new URI). None
    when no workload names any of them. For a thread: reads files."""
    changes: dict[str, list[types.TextEdit]] = {}
    for root in map(Path, roots):
        moves = dict(move for pair in renamed if (move := _within(root, *pair)) is not None)
        for file in tables.files(str(root)) if moves else []:
            try:
                text = foreign.read_text(file, most=foreign.MAX_TOML_BYTES, within=root)
            except (OSError, UnicodeDecodeError):
                continue  # its workloads count no more than its text is read
            found = list(_edits_of(text, moves, encoding))
            if found:
                changes[file.as_uri()] = found
    return types.WorkspaceEdit(changes=changes) if changes else None


def _within(root: Path, old: str, new: str) -> tuple[str, str] | None:
    """Both places relative to a workspace that holds both."""
    before, after = documents.path_of(old), documents.path_of(new)
    if before is None or after is None or before == after:
        return None
    if not (before.is_relative_to(root) and after.is_relative_to(root)):
        return None
    return before.relative_to(root).as_posix(), after.relative_to(root).as_posix()


def _edits_of(text: str, moves: Mapping[str, str], encoding: str) -> Iterator[types.TextEdit]:
    positions = LineIndex(text, encoding)
    for found in _TARGET.finditer(text):
        path = PurePosixPath(found[1])
        inner = next((p for p in map(str, (path, *path.parents)) if p in moves), None)
        if inner is not None and found[1].startswith(inner) and _is_plain(moves[inner]):
            span = Span(start=found.start(1), end=found.start(1) + len(inner))
            where = lsp.range_of(span, positions)
            yield types.TextEdit(range=where, new_text=moves[inner])


def _is_plain(path: str) -> bool:
    """Whether a path may stand between quotation marks as it is; who names a folder otherwise
    corrects the line."""
    return not re.search(r"""["'\\\x00-\x1f\x7f]""", path)
