"""Many files through the analysis, in parallel. What ``kernel-lsp check`` runs.

Covers folders, files in any encoding that Python accepts, unreadable and huge files: each file
yields one Analysis, and one that could not be checked says so in its problem. Follows no links to folders.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from kernel_lsp import files
from kernel_lsp.analysis import DEFECT, analyze
from kernel_lsp.records import Analysis, ParseProblem, Snapshot

MAX_BYTES = 1_000_000
# Starting a process costs about as much as checking 20 files of ordinary size.
_MIN_PARALLEL = 40
_CHUNK = 16


def check_paths(
    paths: Iterable[Path | str],
    jobs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Path, Analysis]]:
    """(path, analysis) of every Python file under the paths, in order. Never raises on a file.

    ``jobs``: processes, by default one per core. ``on_progress(done, total)`` is called after each file.
    """
    within = {file: path if path.is_dir() else None for path in map(Path, paths) for file in find_files(path)}
    found, folders = list(within), list(within.values())
    jobs = jobs or os.cpu_count() or 1
    alone = jobs == 1 or len(found) < _MIN_PARALLEL
    results = map(check_file, found, folders) if alone else _parallel(found, folders, jobs)
    for done, result in enumerate(results, 1):
        if on_progress is not None:
            on_progress(done, len(found))
        yield result


def find_files(path: Path) -> Iterator[Path]:
    """The path itself when it is a file, else the Python files below it, sorted."""
    if not path.is_dir():
        yield path
        return
    waiting = [path]  # os.walk calls itself before Python 3.12: thousands of nested folders ended it
    while waiting:
        folder = waiting.pop()
        _, folders, names = next(os.walk(folder), ("", [], []))
        yield from (folder / name for name in sorted(names) if name.endswith((".py", ".pyi")))
        inside = [folder / name for name in sorted(folders, reverse=True)]
        waiting += [one for one in inside if not (files.is_skipped(one) or one.is_symlink())]


def check_file(path: Path, within: Path | None = None) -> tuple[Path, Analysis]:
    """``within``: the folder in which it was found, and which no link may lead out of."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return path, _unchecked("not checked: larger than 1 MB, so probably generated")
        text = files.read_source(path, within=within).text
    except OSError as error:
        return path, _unchecked(f"cannot be read: {error.strerror or error}")
    except (SyntaxError, UnicodeError, LookupError) as error:
        return path, _unchecked(f"cannot be decoded: {error}; save it as UTF-8 or add a coding comment")
    try:
        return path, analyze(Snapshot(uri=str(path), text=text))
    except Exception as error:  # one file that our analysis fails on must not cost the findings of the others
        return path, _unchecked(f"not checked: {type(error).__name__}: {error} ({DEFECT})")


def _parallel(found: list[Path], folders: list[Path | None], jobs: int) -> Iterator[tuple[Path, Analysis]]:
    # spawn, because a fork of a process with threads (a progress bar) can inherit a held lock.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quiet_collector) as pool:
        yield from pool.map(check_file, found, folders, chunksize=_CHUNK)


def _quiet_collector() -> None:
    # Syntax trees have no cycles: collections only cost time (a fifth of the whole run).
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _unchecked(reason: str) -> Analysis:
    return Analysis(problem=ParseProblem(line=1, column=1, message=reason))
