"""What an answer to the question for consent is about: a place, and what lies there.

    subject = about(folder)          kept with the answer; with another one it is asked again
    covers(subject, folder, path)    a folder that is no project covers what lay in it then

The folder itself (device, inode, when it was made), where its repository comes from and with which
commit this copy of it began. Read as text, bounded, by the one reader of foreign files: no program
is run, none of the repository's configuration is executed. Standard library only. Not covered:
what a pull or an edit brings into a repository that was allowed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
import struct
import sys
from pathlib import Path
from typing import Any

from kernel_lsp import foreign

MARKS = (
    ".git", ".hg", ".jj", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt",
    "environment.yml",
    "pixi.toml", "uv.lock", ".venv", ".kernel-lsp", ".vscode", ".idea",
)  # fmt: skip
"""A folder with one of these is a project; another is a folder in which things happen to lie."""
MAX_BYTES = 1024**2
MAX_ENTRIES = 4096
_SECTION = re.compile(r"^[ \t]{0,16}\[([^\]\n]{0,300})\]")
_URL = re.compile(r"^[ \t]{0,16}url[ \t]{0,16}=[ \t]{0,16}(\S{1,2000})")
_BEGAN = re.compile(r"^[0-9a-f]{40,64} ([0-9a-f]{40,64}) ")
_AT_FDCWD, _BIRTH, _STATX_BYTES = -100, 0x800, 256


def about(folder: Path | str) -> dict[str, Any]:
    """What a consent to the folder is about, as JSON that is equal as long as it is the same;
    nothing of a folder that is not there. Never raises."""
    root = Path(folder)
    try:
        found = root.stat()
    except OSError:
        return {}
    subject: dict[str, Any] = {"place": [found.st_dev, found.st_ino, birth_time(root)]}
    git = _git(root)
    if git is not None:
        subject["remotes"], subject["began"] = _remotes(git), _began(git)
    if not any(os.path.lexists(root / mark) for mark in MARKS):
        subject["entries"] = _entries(root)
    return subject


def same(then: Any, now: dict[str, Any]) -> bool:
    """Whether what lies there is what was asked about; what lies in it is `covers`'."""
    if not isinstance(then, dict):
        return False
    return {**then, "entries": None} == {**now, "entries": None}


def covers(subject: dict[str, Any], folder: Path | str, path: Path | str | None) -> bool:
    """Whether a file belongs to what was asked about."""
    if path is None or "entries" not in subject:
        return True
    entries = subject["entries"] or {}
    with contextlib.suppress(ValueError):
        parts = (Path(folder) / path).relative_to(Path(folder)).parts
        return not parts or (
            parts[0] in entries and entries[parts[0]] == _mark(Path(folder) / parts[0])
        )
    return True  # a file outside is another question's


def words(folder: Path | str) -> str:
    """What an answer covers, for whoever is asked."""
    subject = about(folder)
    if "entries" not in subject:
        return (
            "this folder as long as it is the same one; you are asked again when another lies there"
        )
    if subject["entries"] is None:
        return "nothing: too much lies in this folder, which is no project; open one of its folders"
    return (
        "what lies in this folder now, not what comes to lie there later: it is no project of its "
        "own"
    )


def birth_time(path: Path) -> int | None:
    """When a file was made (nanoseconds since 1970): numbers of inodes come again. None: unknown
    here."""
    with contextlib.suppress(AttributeError, OSError):
        statx = ctypes.CDLL(None, use_errno=True).statx
        buffer = ctypes.create_string_buffer(_STATX_BYTES)
        if statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH, buffer) == 0:
            (mask,) = struct.unpack_from("=I", buffer, 0)
            seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
            return seconds * 10**9 + nanoseconds if mask & _BIRTH else None
    return None


def _entries(root: Path) -> dict[str, Any] | None:
    """None where there are too many to tell them apart: none of them is covered."""
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in root.iterdir())
        return {name: _mark(root / name) for name in names} if len(names) <= MAX_ENTRIES else None
    return None


def _mark(path: Path) -> list[int | None] | None:
    """Of a folder which one it is; a file is the one of its name, however often it is saved."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return [path.stat().st_ino, birth_time(path)]
    return None


def _git(root: Path) -> Path | None:
    """The folder of the repository's data, also where `.git` is a file that names it."""
    git = root / ".git"
    with contextlib.suppress(OSError, ValueError):
        if git.is_dir():
            return git
        name, _, place = foreign.read_text(git, most=4096).partition(":")
        return root / place.strip() if name == "gitdir" else None
    return None


def _remotes(git: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        section, found = "", set[str]()
        for line in foreign.read_text(_common(git) / "config", most=MAX_BYTES).splitlines():
            if match := _SECTION.match(line):
                section = match[1]
            elif section.startswith("remote ") and (match := _URL.match(line)):
                found.add(match[1])
        return sorted(found)
    return []


def _common(git: Path) -> Path:
    """Where a worktree's repository keeps what all of them share."""
    with contextlib.suppress(OSError, ValueError):
        return git / foreign.read_text(git / "commondir", most=4096).strip()
    return git


def _began(git: Path) -> str | None:
    """The commit with which this copy began, of the first line of its log."""
    flags = os.O_RDONLY
    if sys.platform != "win32":
        flags |= os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        with open(os.open(git / "logs" / "HEAD", flags), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            line = file.readline(4096).decode(errors="replace") if regular else ""
        match = _BEGAN.match(line)
        return match[1] if match else None
    return None
