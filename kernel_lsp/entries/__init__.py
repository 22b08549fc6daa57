"""What of a workspace can be run: scripts, tests and debug configurations, found by looking at
files alone.

    found(folder)                the entry points of a workspace, likely ones first
    scripts.py                   Python files: which are run, and how
    configurations.py            debug configurations of VS Code

Nothing is run or imported here, and no command is made of it: who runs one is the user, in a
terminal (server/entries.py writes the line). Bounded in files, bytes and seconds. Standard library
only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.entries import configurations, scripts
from kernel_lsp.records import EntryKind, EntryPoint, EntryPoints

MAX_ENTRIES = 300
"""In one answer: a person chooses from them."""
_ORDER = (EntryKind.DEBUG, EntryKind.SCRIPT, EntryKind.TEST)


def find_entries(
    folder: Path, debug: Sequence[Any] | None = None, open_file: Path | None = None
) -> EntryPoints:
    """The entry points of a workspace. Never raises on what lies in it.

    ``debug``: configurations that the editor has read; None: those of ``.vscode/launch.json`` that
    can be read. ``open_file`` comes first."""
    launched, problems = configurations.entry_points(folder, debug, open_file)
    files, complete = scripts.entry_points(folder)
    ordered = sorted(
        (*launched, *files), key=lambda one: (not _is_of(one, open_file, folder), *_rank(one))
    )
    return EntryPoints(
        points=tuple(ordered[:MAX_ENTRIES]),
        problems=problems,
        complete=complete and len(ordered) <= MAX_ENTRIES,
    )


def _rank(one: EntryPoint) -> tuple[bool, int]:
    """What says itself that it uses torch, debug configurations, scripts, tests; else as they were
    found."""
    return (one.kind is not EntryKind.DEBUG and not one.uses_torch, _ORDER.index(one.kind))


def _is_of(one: EntryPoint, file: Path | None, folder: Path) -> bool:
    return one.path is not None and folder / one.path == file
