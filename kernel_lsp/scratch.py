"""Scratch folders that say whose they are, so that those of processes that were killed are
removed.

    with scratch.folder("engine") as folder: ...
    scratch.make("gate"), scratch.room()

They hold source text, and `kill -9` leaves them behind. A name says its process: the number, the
namespace that it is a number of (containers may share /tmp), and when it began, since numbers come
again. The first `prefix` of a process removes, in the background, what dead ones of the same user
have left. Standard library only. Not covered: other machines that share the folder, other systems
than Linux (nothing is removed there), and Ray's folder, whose name must be short."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import leftovers

_NAME = re.compile(r"kernel-lsp-[a-z]{1,16}-(\d{1,20})\.(\d{1,10})\.(\d{1,20})-\w{1,16}")


def prefix(kind: str) -> str:
    """How the name of a scratch folder of this process begins. ``kind``: a word of a to z."""
    began = _began(os.getpid())
    if began is None:
        return f"kernel-lsp-{kind}-"
    _sweep_once()
    return f"kernel-lsp-{kind}-{_namespace()}.{os.getpid()}.{began}-"


def room() -> Path:
    """The folder of this process in which its scratch folders lie: all that its children can write
    to lies below it. It goes when the process ends."""
    return _room(os.getpid())


@functools.cache
def _room(pid: int) -> Path:
    made = Path(tempfile.mkdtemp(prefix=prefix("room")))
    atexit.register(_leave, pid, made)
    return made


def _leave(pid: int, made: Path) -> None:
    if os.getpid() == pid:  # not in a fork
        leftovers.remove(made)


def make(kind: str) -> Path:
    """A new folder in the room. ``kind``: a word of a to z, for who looks there."""
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=room()))


@contextlib.contextmanager
def folder(kind: str) -> Iterator[Path]:
    """A new folder that is removed in the end, whatever was made in it."""
    made = make(kind)
    try:
        yield made
    finally:
        leftovers.remove(made)


def sweep(parent: Path) -> list[Path]:
    """Remove what dead processes of this user and namespace have left in a folder; returns it."""
    with contextlib.suppress(OSError):
        found = sorted(parent.iterdir())
        return [folder for folder in found if _is_left_behind(folder) and leftovers.remove(folder)]
    return []


def _is_left_behind(folder: Path) -> bool:
    found = _NAME.fullmatch(folder.name)
    if found is None or found[1] != _namespace():
        return False
    with contextlib.suppress(OSError):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            return False
        return _began(int(found[2])) != found[3]
    return False


def _began(pid: int) -> str | None:
    """Ticks from the start of the machine to that of a process; None: it is not there."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return None


@functools.cache
def _namespace() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return "0"


@functools.cache
def _sweep_once() -> None:
    """Beside whoever asked: a folder may hold a gigabyte."""
    parent = Path(tempfile.gettempdir())
    threading.Thread(target=sweep, args=(parent,), name="scratch", daemon=True).start()
