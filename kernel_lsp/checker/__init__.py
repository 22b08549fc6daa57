"""Many files through the analysis, in parallel, or from what is known of them. What ``kernel-lsp
check`` runs.

Covers folders, notebooks, files in any encoding that Python accepts, unreadable and huge files:
each file yields one Analysis, and one that could not be checked says so in its problem. Which
files those are is discovery.py's; what is remembered from one run to the next is known.py's;
edits are fixing.py's."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from kernel_lsp import files, notebooks
from kernel_lsp.analysis import DEFECT, analyze
from kernel_lsp.checker.discovery import FoundFile, find_files
from kernel_lsp.checker.known import KnownFindings
from kernel_lsp.notebooks import placing
from kernel_lsp.records import Analysis, ParseProblem, Snapshot

__all__ = [
    "MAX_BYTES",
    "FoundFile",
    "KnownFindings",
    "check_file",
    "check_files",
    "check_paths",
    "check_text",
    "find_files",
]

MAX_BYTES = 1_000_000
# Starting a process costs about as much as checking 20 files of ordinary size.
_MIN_PARALLEL = 40
_CHUNK = 16

OnProgress = Callable[[int, int], None]


def check_paths(
    paths: Iterable[Path | str], jobs: int | None = None, on_progress: OnProgress | None = None
) -> Iterator[tuple[Path, Analysis]]:
    """(path, analysis) of every Python file under the paths, in order: of all, whatever git or
    settings say."""
    within = {
        file: path if path.is_dir() else None
        for path in map(Path, paths)
        for file in find_files(path)
    }
    found = [
        FoundFile(path=file, root=file.absolute().parent, within=folder)
        for file, folder in within.items()
    ]
    return check_files(found, jobs=jobs, on_progress=on_progress)


def check_files(
    found: Sequence[FoundFile],
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    known: KnownFindings | None = None,
) -> Iterator[tuple[Path, Analysis]]:
    """(path, analysis) of each file, in order. Never raises on a file.

    ``jobs``: processes, by default one per core. ``on_progress(done, total)`` is called after
    each file. ``known``: analyses of earlier runs; those of this one are added to it."""
    before = {one.path: known.get(one) for one in found} if known is not None else {}
    asked = [one for one in found if before.get(one.path) is None]
    jobs = jobs or os.cpu_count() or 1
    alone = jobs == 1 or len(asked) < _MIN_PARALLEL
    made = map(_check, asked) if alone else _parallel(asked, jobs)
    for done, one in enumerate(found, 1):
        analysis = before.get(one.path)
        if analysis is None:
            analysis = next(made)
            if known is not None:
                known.put(one, analysis)
        if on_progress is not None:
            on_progress(done, len(found))
        yield one.path, analysis


def check_file(path: Path, within: Path | None = None) -> tuple[Path, Analysis]:
    """(path, findings) of one file. ``within``: the folder in which it was found, and which no link
    may lead out of."""
    is_notebook = path.suffix == notebooks.SUFFIX
    most, said = (
        (notebooks.MAX_BYTES, "32 MB")
        if is_notebook
        else (MAX_BYTES, "1 MB, so probably generated")
    )
    try:
        if path.stat().st_size > most:
            return path, _unchecked_analysis(f"not checked: larger than {said}")
        if is_notebook:
            text = notebooks.read_json(path, within=within)
        else:
            text = files.read_source(path, within=within).text
    except OSError as error:
        return path, _unchecked_analysis(f"cannot be read: {error.strerror or error}")
    except (SyntaxError, UnicodeError, LookupError) as error:
        return path, _unchecked_analysis(
            f"cannot be decoded: {error}; save it as UTF-8 or add a coding comment"
        )
    return path, check_text(path, text)


def check_text(path: Path, text: str) -> Analysis:
    """The analysis of a file's text, which may be a notebook's."""
    try:
        if path.suffix == notebooks.SUFFIX:
            return _check_notebook(path, text)
        return analyze(Snapshot(uri=str(path), text=text))
    except Exception as error:
        # One file that our analysis fails on must not cost the findings of the others.
        return _unchecked_analysis(f"not checked: {type(error).__name__}: {error} ({DEFECT})")


def _check_notebook(path: Path, text: str) -> Analysis:
    try:
        program = notebooks.program(notebooks.parse(text).cells)
    except (ValueError, RecursionError) as error:
        return _unchecked_analysis(f"cannot be read as a notebook: {error}")
    if len(program.text) > MAX_BYTES:
        return _unchecked_analysis(
            "not checked: its cells are larger than 1 MB, so probably generated"
        )
    analysis = analyze(Snapshot(uri=str(path), text=program.text))
    placed = replace(
        analysis, findings=tuple(placing.place_finding(one, program) for one in analysis.findings)
    )
    for cell, why in program.broken[:1]:
        said = f"cell {cell.number} is left out: {why}"
        return replace(placed, problem=ParseProblem(line=1, column=1, message=said))
    return placed


def _check(one: FoundFile) -> Analysis:
    return check_file(one.path, one.within)[1]


def _parallel(found: list[FoundFile], jobs: int) -> Iterator[Analysis]:
    # spawn, because a fork of a process with threads (a progress bar) can inherit a held lock.
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_quiet_collector
    ) as pool:
        yield from pool.map(_check, found, chunksize=_CHUNK)


def _quiet_collector() -> None:
    # Syntax trees have no cycles: collections only cost time (a fifth of the whole run).
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _unchecked_analysis(reason: str) -> Analysis:
    return Analysis(problem=ParseProblem(line=1, column=1, message=reason))
