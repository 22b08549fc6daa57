"""Lines that record or optimize a program of the workspace, for a terminal of the editor.

The server never runs one: the user does, with the user's rights, and sees what it does.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import documents, entries, interpreter
from kernel_lsp.records import EntryPoint, EntryPoints, Json
from kernel_lsp.server.app import KernelServer
from kernel_lsp.server.protocol import RequestFailed

OURS = (sys.executable, "-P", "-m", "kernel_lsp")
"""kernel-lsp as this process is one. -P: or a kernel_lsp/ of the workspace would be imported
instead."""

OPTIMIZE = (*OURS, "optimize", "--")


async def list_entries(
    ls: KernelServer, folder: str, uri: str | None, debug: Sequence[Any] | None
) -> Json:
    """The entry points of a workspace, each with its lines, and how lines begin. Raises
    RequestFailed.

    ``debug``: configurations that the editor has read.
    """
    if not ls.trusted:
        raise RequestFailed(
            f"{folder} is not trusted: trust it in the editor before its programs are run"
        )
    root = Path(folder)
    open_file = documents.path_of(uri) if uri is not None else None
    found: EntryPoints = await asyncio.to_thread(entries.find_entries, root, debug, open_file)
    python = interpreter.find(folder, ls.settings(folder).python).path
    return {
        "folder": folder,
        "record": line(_record(root)),
        "optimize": line(OPTIMIZE),
        "python": line([python]),
        "points": [_entry_json(one, root, python) for one in found.points],
        "problems": list(found.problems),
        "complete": found.complete,
    }


def advice(found: Json) -> str:
    """What a person would have to run, in words."""
    points = found["points"]
    if not points:
        return (
            f"run your program in a terminal with this before it: {found['record']} "
            f"{found['python']}"
        )
    first, others = points[0], len(points) - 1
    more = f" (and {others} others: the command kernel-lsp.entryPoints)" if others else ""
    return (
        f"to record {first['name']}{more}, run in a terminal in {first['path']}: {first['record']}"
    )


def _entry_json(one: EntryPoint, root: Path, python: str) -> Json:
    """``path``: of the folder that the line is for."""
    program = (one.python or python, *one.words)
    return {
        "name": one.name,
        "kind": one.kind.value,
        "path": one.folder,
        "record": line((*_setting(one), *_record(root), *program)),
        "optimize": line((*_setting(one), *OPTIMIZE, *program)),
    }


def _record(root: Path) -> Sequence[str]:
    """What is recorded belongs to the workspace of the editor, wherever the program is run."""
    return (*OURS, "record", "--root", str(root), "--")


def _setting(one: EntryPoint) -> Sequence[str]:
    """Around all of it: the recorder reaches a program by a variable of its own."""
    return (
        ("env", *(f"{name}={value}" for name, value in one.environment)) if one.environment else ()
    )


def line(words: Sequence[str]) -> str:
    """The words as one line that a shell takes."""
    return shlex.join(words) if os.name != "nt" else subprocess.list2cmdline(words)
