"""Mounts of its own for a process tree: what it sees, where, and with which content.

    cover what is not on the list -> show what was named -> overlays -> files in the place of
    others

Everything is read-only but the writable folders, /tmp and /dev/shm (empty, private) and overlays.
Writes to an overlay go to memory of the tree and end with it. Needs a mount namespace; standard
library only. Not covered: file systems mounted below an overlaid folder are seen as empty folders.
"""

from __future__ import annotations

import os
import stat
import struct

from kernel_lsp.confinement import linux, visible
from kernel_lsp.confinement.layers import MOUNTS, OVERLAYS, REPLACED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
ATTR_RDONLY = 1
PRIVATE = ("/tmp", "/dev/shm")
STAGING = "/tmp/.overlays"
SMALL = "size=16m,mode=755"
"""A folder that only holds the places of mounts."""


class View:
    """What a process tree is to see besides the machine's programs. Paths are absolute."""

    def __init__(
        self,
        *,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        hidden: Sequence[str] = (),
        overlaid: Sequence[str] = (),
        replaced: Mapping[str, str] | None = None,
        gpu: bool = False,
        software: Sequence[str] = (),
        size: int = 2 * 1024**3,
    ) -> None:
        """``readable``: files and folders. ``overlaid``: folders that may be written to; nothing of
        it reaches the disk. ``replaced``: path of a file -> the file that is seen in its place.
        ``software``: folders of programs besides those of this process's interpreter. ``size``:
        bytes that may be written to the private folders, and again to the overlays."""
        self.readable, self.writable, self.hidden = readable, writable, hidden
        self.overlaid, self.replaced, self.software = overlaid, replaced or {}, software
        self.gpu, self.size = gpu, size


def make_own(view: View) -> list[str]:
    """Give this process its own view, for good; returns the layers that took effect.

    Needs a private mount namespace. Raises OSError.
    """
    clones = {path: _clone(path) for path in list_mounts(view)}
    edited = {path: _clone(file) for path, file in view.replaced.items()}
    _read_only(AT_FDCWD, b"/", AT_RECURSIVE)
    covers = [path for path in visible.covered_folders() if path not in PRIVATE]
    for path in covers:
        _tmpfs(path, SMALL)
    for path in PRIVATE:
        os.makedirs(path, exist_ok=True)
        _tmpfs(path, f"size={view.size},mode=1777")
    _show(view, clones)
    if os.geteuid() == 0:  # now: before, there was no /dev/null to hide them with
        for path in only_root_reads("/etc"):
            _hide(path)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    layers = [MOUNTS]
    if view.overlaid:
        with linux.Ignoring(OSError):  # the layer is missing then, and the folders are read-only
            _lay_over(view)
            layers.append(OVERLAYS)
    if edited:
        with linux.Ignoring(OSError):
            for path, tree in edited.items():
                _read_only(tree, b"", AT_EMPTY_PATH)
                _place(tree, path)
            layers.append(REPLACED)
    for path in covers:
        if path not in clones:
            _read_only(AT_FDCWD, path.encode(), 0)
    return layers


def _show(view: View, clones: dict[str, int]) -> None:
    """Each at its place, the outer ones first: what lies nearer counts."""
    writable = {*view.writable, *map(os.path.realpath, view.writable)}
    for path in sorted({*clones, *view.hidden}, key=lambda path: path.count("/")):
        if path in view.hidden:
            _hide(path)
            continue
        # A link lies in a folder that is seen already, and what it names has a mount of its own.
        if os.path.islink(path):
            os.close(clones[path])
            continue
        if path not in writable and not path.startswith("/dev/"):
            _read_only(clones[path], b"", AT_EMPTY_PATH | AT_RECURSIVE)
        _place(clones[path], path)


def _lay_over(view: View) -> None:
    """Make the overlaid folders writable, in memory. Raises OSError where that is not permitted."""
    os.mkdir(STAGING)
    _tmpfs(STAGING, f"size={view.size},mode=700")
    try:
        for number, path in enumerate(sorted(view.overlaid)):
            place = f"{STAGING}/{number}"
            for name in ("lower", "upper", "work"):
                os.makedirs(f"{place}/{name}")
            _place(_clone(path), f"{place}/lower")
            _like(path, f"{place}/upper")
            layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,userxattr"
            linux.mount("overlay", path, "overlay", linux.MS_NOSUID | linux.MS_NODEV, layers)
    finally:
        linux.unmount(STAGING)
        os.rmdir(STAGING)


def _like(path: str, upper: str) -> None:
    """The folder itself looks as the one below."""
    found = os.stat(path)
    os.chmod(upper, stat.S_IMODE(found.st_mode))
    with linux.Ignoring(OSError):  # a user has no files of others
        os.chown(upper, found.st_uid, found.st_gid)


def list_mounts(view: View) -> list[str]:
    """Everything that gets a mount of its own, by the name it was given and by its real one."""
    covers = visible.covered_folders()
    found = {*view.readable, *view.writable, *view.overlaid}
    found |= set(map(os.path.realpath, found))
    for path in {*visible.software(), *view.software}:
        real = os.path.realpath(path)
        found |= {path, real} if _below(real, covers) else set()
    found = {path for path in found if os.path.exists(path)}
    return sorted(found.union(visible.devices(gpu=view.gpu)))


def _below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _hide(path: str) -> None:
    if os.path.isdir(path):
        _tmpfs(path, SMALL)
    elif os.path.exists(path):
        _place(_clone("/dev/null"), path)


def only_root_reads(folder: str) -> list[str]:
    """Entries of the folder that others than root may not read, such as the passwords' hashes: root
    reads them also without capabilities."""
    found = []
    for entry in list(os.scandir(folder)):
        with linux.Ignoring(OSError):
            if not entry.is_symlink() and not entry.stat().st_mode & stat.S_IROTH:
                found.append(entry.path)
    return found


def _tmpfs(path: str, options: str) -> None:
    linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def _place(tree: int, path: str) -> None:
    """Mount a clone at ``path``, which is made where it lies in a folder of the tree's own."""
    if not os.path.lexists(path):
        folder = stat.S_ISDIR(os.fstat(tree).st_mode)
        os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
        if not folder:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    move(tree, path)


def move(tree: int, path: str) -> None:
    """Put a detached tree of mounts at the path, and close its descriptor."""
    linux.syscall(
        "move_mount", MOVE_MOUNT, tree, b"", AT_FDCWD, path.encode(), MOVE_MOUNT_F_EMPTY_PATH
    )
    os.close(tree)


def _clone(path: str) -> int:
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
    return linux.syscall("open_tree", OPEN_TREE, AT_FDCWD, path.encode(), flags)


def make_read_only(path: str) -> None:
    """A path inside the view, whatever is mounted there."""
    tree = _clone(path)
    _read_only(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE)
    move(tree, path)


def _read_only(folder: int, path: bytes, flags: int) -> None:
    attributes = struct.pack("=QQQQ", ATTR_RDONLY, 0, 0, 0)
    linux.syscall("mount_setattr", MOUNT_SETATTR, folder, path, flags, attributes, len(attributes))
