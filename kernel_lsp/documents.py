"""Documents on disk: which ones concern us, their text, and changes made to them from outside.

The watch is debounced and never blocks (watchdog, one thread). Not covered: the text of open
documents, which the editor owns and pygls mirrors, and positions in a text (positions.py)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from kernel_lsp import files, foreign, notebooks
from kernel_lsp.records import Snapshot

if TYPE_CHECKING:
    # Imported when the first folder is watched, off the loop: the editor waits for the start.
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.api import BaseObserver, ObservedWatch

MAX_CHARS = 1_000_000
"""Longer documents are generated code, not something a person tunes by hand."""
MAX_BYTES = 4 * MAX_CHARS
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", ".git"})


def is_wanted(uri: str, text: str) -> bool:
    """Is this a Python file that a person may want to make faster? What is installed is not: an
    editor's edit would change the library itself, where `kernel-lsp optimize` writes a patch."""
    if is_too_long(text):
        return False
    path = path_of(uri)
    return path is None or not (
        _SKIPPED_FOLDERS.intersection(path.parts) or files.is_installed(path)
    )


def is_too_long(text: str) -> bool:
    """Whether a text is longer than any that is analyzed."""
    return len(text) > MAX_CHARS


def path_of(uri: str) -> Path | None:
    """The file behind a ``file:`` URI of this machine; None for documents that have none
    (untitled, notebook cells, another machine's share), and for what is no URI at all."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme != "file" or "\0" in path:
        return None
    if os.name == "nt":  # file:///c:/x, file://server/share/x
        return Path(f"//{parts.netloc}{path}" if parts.netloc else path.lstrip("/"))
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        return None
    return Path(os.path.normpath(path))


def read(uri: str, within: str | Path | None = None) -> Snapshot | None:
    """The file on disk, every byte kept, of a notebook its program; None when it is gone, not
    UTF-8, or nothing that a person wrote.

    ``within``: the workspace, which no link may lead out of.
    """
    path = path_of(uri)
    try:
        if path is None:
            return None
        inside = Path(within) if within else None
        if notebooks.is_notebook(path):
            return Snapshot(uri=uri, text=notebooks.read_source(path, within=inside).text)
        return Snapshot(uri=uri, text=foreign.read_text(path, most=MAX_BYTES, within=inside))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


class DiskWatch:
    """Tells which files changed on disk, in debounced batches, from a thread of its own.

    Watches single folders rather than whole trees: a workspace with an environment inside holds
    tens of thousands of folders, and every one would cost an inotify watch. A folder that is not
    there is watched from its appearance on, where the folder that it appears in is watched."""

    def __init__(self, changed: Callable[[frozenset[Path]], None], *, delay_s: float = 0.2) -> None:
        self._changed, self._delay_s = changed, delay_s
        self._lock = threading.Lock()
        self._pending: set[Path] = set()
        self._timer: threading.Timer | None = None
        self._watched: dict[tuple[Path, bool], ObservedWatch | None] = {}
        """(folder, recursive) -> what the observer calls it; None: it was not there."""
        self._observer: BaseObserver | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def add(self, folders: Iterable[Path], *, recursive: bool = False) -> list[str]:
        """Watch these folders too. Blocks (call it off the loop); returns what could not be
        watched."""
        problems = []
        for folder in folders:
            if self._watched.get((folder, recursive)) is None and not self._stopped:
                problems += self._watch(folder, recursive)
        return problems

    def _watch(self, folder: Path, recursive: bool) -> list[str]:
        key = (folder, recursive)
        if (earlier := self._watched.get(key)) is not None and self._observer is not None:
            with contextlib.suppress(KeyError):
                self._observer.unschedule(earlier)  # of a folder that went meanwhile
        self._watched[key] = None
        is_there = False
        with contextlib.suppress(OSError):  # a name that is too long
            is_there = folder.is_dir()
        if not is_there:
            return []
        try:
            handler = cast("FileSystemEventHandler", self)  # all that is called is dispatch()
            self._watched[key] = self._started().schedule(handler, str(folder), recursive=recursive)
        except OSError as error:
            return [f"{folder} is not watched: {error} (raise fs.inotify.max_user_watches)"]
        return []

    def stop(self) -> None:
        """Ends the watch; nothing is reported after it."""
        self._stopped = True
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        if self._observer is not None and self._observer.is_alive():
            self._observer.stop()

    def dispatch(self, event: FileSystemEvent) -> None:
        """Takes an event; called by the observer's thread for everything that happens."""
        if event.event_type in ("opened", "closed_no_write"):
            return
        paths = {Path(os.fsdecode(name)) for name in (event.src_path, event.dest_path) if name}
        if event.is_directory:
            is_new = event.event_type in ("created", "moved")
            paths = {file for path in paths for file in self._appeared(path)} if is_new else set()
        interesting = {p for p in paths if p.suffix in (".py", ".toml", ".md")}
        if interesting:
            self._collect(interesting)

    def _appeared(self, folder: Path) -> list[Path]:
        """Files that were put into an awaited folder before it was watched."""
        awaited = [(path, recursive) for path, recursive in list(self._watched) if path == folder]
        for path, recursive in awaited:
            self._watch(path, recursive)
        with contextlib.suppress(OSError):
            return list(folder.iterdir()) if awaited else []
        return []

    def _collect(self, paths: set[Path]) -> None:
        with self._lock:
            self._pending |= paths
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._delay_s, self._flush)
            self._timer.daemon = True
            self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            batch, self._pending = frozenset(self._pending), set()
        if batch and not self._stopped:
            self._changed(batch)

    def _started(self) -> BaseObserver:
        with self._starting:
            if self._observer is None:
                from watchdog.observers import Observer

                self._observer = Observer()
                self._observer.daemon = True
                self._observer.start()
            return self._observer
