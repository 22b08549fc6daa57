"""What confined code has left in a folder: read, written beside and removed without being led
anywhere.

    with opened(scratch) as folder:
        for found in files(folder, "triton"): ...     regular files of one name, in plain folders
        write(folder, ("triton", "HASH", "add.so"), data, mode)
    remove(scratch)

Every name is opened beneath a descriptor, part by part, and no link is followed: whoever could
write to the folder may replace any part of it at any moment. Nothing here recurses, as nesting
costs nothing to make. Standard library only. Not covered: bytes that a living process changes
while they are read."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 16
MAX_ENTRIES = 100_000
if sys.platform == "win32":  # nothing confined runs there, so nothing is left behind
    _FOLDER = _FILE = os.O_RDONLY
else:
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    _FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooMuch(OSError):
    """Deeper or more than anything of ours would leave."""


@dataclass(frozen=True, slots=True)
class LeftoverFile:
    """A regular file: the names that lead to it, and its content."""

    names: tuple[str, ...]
    content: bytes


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor of the folder itself. Raises OSError when it is none, or a link."""
    descriptor = os.open(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def files(folder: int, *tops: str, most_bytes: int) -> Iterator[LeftoverFile]:
    """The files below the folders of these names, in any order; links, pipes, devices and files
    that have another name as well are passed over. Raises TooMuch, other OSErrors when something
    is taken away."""
    waiting: list[tuple[str, ...]] = [(name,) for name in tops]
    left, entries = most_bytes, 0
    while waiting:
        names = waiting.pop()
        try:
            here = _descend(folder, names)
        except OSError:  # there is none, or a link in its place
            continue
        try:
            for name in os.listdir(here):  # noqa: PTH208 - of a descriptor
                entries += 1
                if entries > MAX_ENTRIES or len(names) > MAX_DEPTH:
                    raise TooMuch("more files or folders than a compiler makes")
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append((*names, name))
                elif stat.S_ISREG(found.st_mode):
                    content = _read(here, name, left)
                    if content is not None:
                        left -= len(content)
                        yield LeftoverFile((*names, name), content)
        finally:
            os.close(here)


def write(folder: int, names: Sequence[str], content: bytes, mode: int) -> bool:
    """A new file at ``names`` below the folder, and the folders that lead to it; False: there is
    something.

    Raises OSError when a part of the way is no folder or the disk is full; there is no part of the
    file then, which would be taken for the whole."""
    here = _descend(folder, names[:-1], make=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(names[-1], flags, 0o600, dir_fd=here)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                os.fchmod(descriptor, mode)
        except OSError:
            _unlink(here, names[-1])
            raise
        return True
    finally:
        os.close(here)


def bytes_below(folder: Path) -> int:
    """Bytes on disk of all files below, so that a sparse file costs what it takes. Raises
    TooMuch."""
    total, entries = 0, 0
    waiting = [(os.fspath(folder), 0)]
    while waiting:
        path, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise TooMuch(f"it nested folders more than {MAX_DEPTH} deep in its scratch folder")
        with contextlib.ExitStack() as stack:
            try:
                found = stack.enter_context(os.scandir(path))
            except OSError:  # deleted meanwhile, or closed to everybody
                continue
            for entry in found:
                entries += 1
                if entries > MAX_ENTRIES:
                    raise TooMuch(f"it made more than {MAX_ENTRIES:,} files in its scratch folder")
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def remove(folder: Path) -> bool:
    """Remove the folder and all that is in it, however deep; whether nothing of it is left. Never
    raises.

    Folders are moved up before they are emptied, so that no path grows and two descriptors are
    enough. Where nothing is confined (other systems than Linux) the library's way suffices."""
    if sys.platform != "linux":
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.lexists(folder)
    with contextlib.suppress(OSError):
        with open_folder(folder) as root:
            os.fchmod(root, 0o700)
            while names := _empty_folder(root):
                for name in names:
                    _empty_into(root, name)
        folder.rmdir()
    with contextlib.suppress(OSError):
        folder.unlink()  # it was a link or a file
    return not os.path.lexists(folder)


def _empty_folder(folder: int) -> list[str]:
    """Remove its files; the names of the folders in it. Raises OSError when something stays."""
    return [name for name in os.listdir(folder) if not _unlink(folder, name)]


def _unlink(folder: int, name: str) -> bool:
    """False: it is a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


def _empty_into(root: int, name: str) -> None:
    """Remove a folder of the root; what is nested in it becomes a folder of the root."""
    _make_enterable(root, name)
    here = os.open(name, _FOLDER, dir_fd=root)
    try:
        for inner in _empty_folder(here):
            _make_enterable(here, inner)  # moving a folder writes to it
            os.rename(inner, secrets.token_hex(16), src_dir_fd=here, dst_dir_fd=root)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=root)


def _make_enterable(folder: int, name: str) -> None:
    """Give the owner its rights, by a descriptor that needs none."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
    finally:
        os.close(handle)


def _descend(folder: int, names: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of the folder at ``names``. Raises OSError, also where a part is a link."""
    here = os.dup(folder)
    try:
        for name in names:
            if name in ("", ".", "..") or "/" in name:
                raise NotADirectoryError(f"{name!r} is no name of a folder")
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=here)
            inner = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
    except BaseException:
        os.close(here)
        raise
    return here


def _read(folder: int, name: str, most: int) -> bytes | None:
    """None: it is no regular file of one name. Raises TooMuch."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return None
        if found.st_size > most:
            raise TooMuch("more bytes than are kept")
        content = stream.read(most + 1)
    if len(content) > most:
        raise TooMuch("more bytes than are kept")
    return content
