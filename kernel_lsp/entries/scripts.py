"""The Python files of a workspace that are run: by a main part, by their look, or by pytest.

A file is run where it has ``if __name__ == "__main__"``, trains in a loop of its own top level, or
calls its own ``main()`` there. One that imports its neighbors by dots is run as a module. Looked
at is text alone. Environments, hidden folders, links to folders and generated files are left out;
`MAX_…` and `LIMIT_S` bound the rest, nearest files first. Not covered: programs that a package's
installation makes (console scripts)."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import files, parsing
from kernel_lsp.records import EntryKind, EntryPoint

MAX_BYTES = 1_000_000
"""Of a file; longer ones are generated."""
MAX_FILES = 10_000
MAX_LISTED = 200_000
"""Names in all folders together."""
MAX_IN_FOLDER = 20_000
"""Names in a folder below the workspace; one with more holds data."""
LIMIT_S = 3.0
_TRAINS = frozenset({"backward", "step", "zero_grad", "generate"})
"""Methods, called in a loop of the top level."""
_MAIN = frozenset({"main", "train"})
"""Functions, called at the top level."""
_MAYBE = re.compile(
    r"__main__|\.(?:backward|step|zero_grad|generate)\(|^(?:main|train)\(|^\s*from\s+\.", re.M
)
"""Whoever has none of it is not parsed."""


class _WorkspaceWalk:
    """One look through a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.complete = folder, True
        self._listed, self._until = 0, time.monotonic() + LIMIT_S

    def files(self) -> Iterator[Path]:
        """Python files, those of the outer folders first."""
        waiting, yielded = deque([self.folder]), 0
        while waiting:
            names, folders = self._list(waiting.popleft())
            for path in names:
                yielded += 1
                if yielded > MAX_FILES or time.monotonic() > self._until:
                    self.complete = False
                    return
                yield path
            waiting += folders

    def _list(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """(Python files, folders) of one folder, sorted; empty where it cannot be read."""
        found: list[Path] = []
        folders: list[Path] = []
        room = MAX_LISTED - self._listed
        if folder != self.folder:
            room = min(room, MAX_IN_FOLDER)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for count, entry in enumerate(entries, 1):
                if count > room or (count % 256 == 0 and time.monotonic() > self._until):
                    self.complete = False
                    break
                self._listed += 1
                if not entry.name.isprintable():  # a terminal would obey such a name
                    continue
                if entry.name.endswith(".py"):
                    if _is_ordinary(entry):
                        found.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False) and not files.is_skipped(Path(entry.path)):
                    folders.append(Path(entry.path))
        return sorted(found), sorted(folders)


def entry_points(folder: Path) -> tuple[tuple[EntryPoint, ...], bool]:
    """(what can be run, whether everything was looked at)"""
    walk = _WorkspaceWalk(folder)
    found = [one for path in walk.files() if (one := _entry_point(path, folder)) is not None]
    return tuple(found), walk.complete


def _is_ordinary(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() and entry.stat().st_size <= MAX_BYTES
    except OSError:  # a link to nowhere, or to itself
        return False


def _entry_point(path: Path, folder: Path) -> EntryPoint | None:
    """None for a file that others import, and for one that cannot be read."""
    is_test = path.name.startswith("test_") or path.name.endswith("_test.py")
    try:
        text = files.read_source(path, within=folder).text
        is_main = path.name == "__main__.py"
        if not (is_test or is_main) and _MAYBE.search(text) is None:
            return None
        tree = parsing.parse_text(text)
    except (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return None
    if not (_has_tests(tree) if is_test else is_main or _has_main(tree) or _runs_by_itself(tree)):
        return None
    by_pytest = ("-m", "pytest", _relative(path, folder)), folder
    words, where = by_pytest if is_test else _words(path, folder, tree)
    return EntryPoint(
        name=path.relative_to(folder).as_posix(),
        kind=EntryKind.TEST if is_test else EntryKind.SCRIPT,
        words=words,
        folder=str(where),
        path=path.relative_to(folder).as_posix(),
        uses_torch=re.search(r"\btorch\b", text) is not None,
    )


def _has_main(tree: ast.Module) -> bool:
    for statement in tree.body:
        if isinstance(statement, ast.If) and isinstance(test := statement.test, ast.Compare):
            sides = [test.left, *test.comparators]
            names = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
            if names and any(
                isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
            ):
                return True
    return False


def _runs_by_itself(tree: ast.Module) -> bool:
    """A training loop, or a call of its own main function, that is run by importing the file."""
    return any(
        any(_is_training(node) for node in ast.walk(statement))
        if isinstance(statement, ast.For | ast.While)
        else _calls_main(statement)
        for statement in _top_level(tree.body)
    )


def _calls_main(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _MAIN


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that are run when the file is, with those inside of ``with``, ``if`` and
    ``try``."""
    waiting = deque(body)
    while waiting:
        statement = waiting.popleft()
        yield statement
        if isinstance(statement, ast.With | ast.If | ast.Try):
            waiting += statement.body


def _is_training(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TRAINS
    )


def _has_tests(tree: ast.Module) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(one, kinds) and one.name.lower().startswith("test") for one in tree.body)


def _words(path: Path, folder: Path, tree: ast.Module) -> tuple[tuple[str, ...], Path]:
    """What follows the interpreter, and where it is run. By its name only where dots ask for it."""
    by_dots = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    if by_dots or path.name == "__main__.py":
        top = _outside_of_packages(path, folder)
        parts = path.relative_to(top).with_suffix("").parts
        module = parts[:-1] if parts[-1] == "__main__" else parts
        if module and all(part.isidentifier() for part in module):
            return ("-m", ".".join(module)), top
    return (_relative(path, folder),), folder


def _outside_of_packages(path: Path, folder: Path) -> Path:
    """The folder that the file's outermost package lies in; the workspace where no ``__init__.py``
    says."""
    top = path.parent
    while top != folder and (top / "__init__.py").exists():
        top = top.parent
    return folder if top == path.parent else top


def _relative(path: Path, folder: Path) -> str:
    """No option of anything, whatever its name."""
    text = path.relative_to(folder).as_posix()
    return f"./{text}" if text.startswith("-") else text
